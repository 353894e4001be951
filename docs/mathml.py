"""Formulas as MathML, which browsers draw themselves: pages need no network and no script to show them."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number


def mathml(text: str, **options: str) -> str:
    made = convert(text.replace(r"\arg", r"\operatorname{arg}"), **options)  # which the converter lacks
    if options:  # limits stand below in displayed formulas
        made = re.sub(r"<msub>(<mo>(?:min|max)</mo><mi>\S+?</mi>)</msub>", r"<munder>\1</munder>", made)
    return made


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})</span>')
    self.body.append(mathml(node.astext(), display="block"))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
