"""Tables as text: with rich where it is installed, plain columns elsewhere."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence

WIDTH = 140


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of strings under their column names."""
    if importlib.util.find_spec("rich") is None:
        return _plain([columns, *rows])
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=WIDTH, markup=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _plain(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def number(value: float) -> str:
    return f"{value:.3g}"


def percent(value: float) -> str:
    return f"{100 * value:.2g} %"
