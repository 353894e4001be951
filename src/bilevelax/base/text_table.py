"""Tables as text, and numbers as they stand in them: what results, commands, the study and benchmarks print."""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

WIDTH, WIDE = 140, 200  # of a text, and in a file or a pipe, where nothing wraps
NO_VALUE = "\N{EN DASH}"
FIGURE = re.compile(r"[-+]?(\d[\d,.:]*(e[-+]?\d+)?|inf|nan)( %)?(\.\.\S+)?|" + NO_VALUE)


class Table(NamedTuple):
    """Strings under column names; columns without names have no heading."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_text(table: Table) -> str:
    """With rich where it is installed, plain columns elsewhere."""
    if importlib.util.find_spec("rich") is None:
        return "\n".join([*[table.title] * bool(table.title), *_plain([table.columns, *table.rows])])
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=WIDTH, markup=False, highlight=False).print(_rich(table))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def as_markdown(table: Table) -> str:
    """With the title in bold above it."""
    line = lambda cells: "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"
    lines = [line(table.columns), "|" + "---|" * len(table.columns), *map(line, table.rows)]
    return (f"**{table.title}**\n\n" if table.title else "") + "\n".join(lines) + "\n"


def show(table: Table, style: Callable[[str], str] = lambda cell: "") -> None:
    """Print it as wide as the terminal; ``style`` gives a cell its colour."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    console.print(_rich(table, style))


def _rich(table: Table, style: Callable[[str], str] = lambda cell: "") -> Any:
    from rich import box
    from rich import table as rich
    from rich.text import Text

    made = rich.Table(
        title=table.title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD if any(table.columns) else None,
        show_header=any(table.columns),
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for i, column in enumerate(table.columns):
        cells = [row[i] for row in table.rows if row[i]]
        figures = bool(cells) and all(map(FIGURE.fullmatch, cells))
        made.add_column(column, justify="right" if figures else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*(Text(cell, style=style(cell)) for cell in row))
    return made


def _plain(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]


def number(value: float | None, digits: int = 3) -> str:
    """Integers in full, else so many digits; a dash where there is none."""
    if value is None:
        return NO_VALUE
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def percent(value: float) -> str:
    """Two digits; plain numbers up to a thousand, which ``g`` would write as 1e+02."""
    share = 100 * value
    return f"{share:.0f} %" if 99.5 <= abs(share) < 1000 else f"{share:.2g} %"


def three_digits(value: float) -> str:
    """Without an exponent where a reader would count its zeros: 1,290 and 0.0103, but 3.4e7."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = float(f"{value:.3g}")
    if 1e3 <= abs(rounded) < 1e6:
        return f"{rounded:,.0f}"
    if 1e-4 <= abs(rounded) < 1e3:
        return f"{rounded:.3g}"
    mantissa, _, power = f"{rounded:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(power)}"


def plain(value: float | None, signed: bool = False) -> str:
    """As people write amounts, never with an exponent: 12,340, 123, 12.3, 1.23, 0.0123; a dash where there is none."""
    if value is None or math.isnan(value):
        return NO_VALUE
    if math.isinf(value):
        return f"{value:+g}" if signed else f"{value:g}"
    size = abs(float(f"{value:.3g}"))
    if size < 1e-12:  # what rounding leaves of nothing
        return "+0" if signed else "0"
    decimals = 0 if size >= 100 else min(12, 2 - math.floor(math.log10(size)))
    return f"{value:{'+' if signed else ''},.{decimals}f}"
