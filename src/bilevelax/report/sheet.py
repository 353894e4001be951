"""A page of tables and drawings that needs no script: one HTML file, offline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from bilevelax.report.page_tables import PageTable
from bilevelax.report.render import filled


class Section(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    hint: str = ""
    drawing: Markup | None = None
    table: PageTable | None = None
    notes: Sequence[str] = ()


def sheet(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page as text. All but the drawings is escaped."""
    return filled("sheet.html", title=title, lead=lead, sections=sections)


def inline(svg: str, label: str) -> Markup:
    """An SVG file as an element of a page, as wide as there is room.

    Args:
        svg: the file, from a source that escapes what it is given, such as matplotlib.
        label: what readers hear who do not see it.
    """
    head, rest = svg[svg.index("<svg") :].split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return Markup(head) + Markup(' role="img" aria-label="{}">').format(label) + Markup(rest)
