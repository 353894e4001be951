"""``.. parts:: PACKAGE`` in a page stands for all parts of a catalogue: a new file has its entry by itself."""

from __future__ import annotations

import importlib
import re
from typing import Any

import bilevelax

LINE = re.compile(r"^\.\. parts:: (\S+)$", re.MULTILINE)


def entry(catalogue: Any, name: str) -> str:
    """The description of a part's function, under its public name where it has one; else of the part itself."""
    function = catalogue.factory or name
    if catalogue.factory is None and name in bilevelax.__all__:
        return f".. autofunction:: {name}"
    if function.islower():
        return f".. autofunction:: {catalogue.package}.{name}.{function}"
    return f"* ``{name}``: {catalogue.summary(name)}"


def entries(package: str) -> str:
    catalogue = importlib.import_module(package).catalogue
    return "\n".join(entry(catalogue, name) for name in catalogue.names())


def expand(text: str) -> str:
    """A page with the entries in place of the lines that stand for them."""
    return LINE.sub(lambda line: entries(line[1]), text)


def on_source_read(app: Any, page: str, source: list[str]) -> None:
    source[0] = expand(source[0])


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", on_source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
