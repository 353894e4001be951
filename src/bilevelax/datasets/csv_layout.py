"""How a CSV file is written: separators, decimal commas, a byte order mark; its rows as lists of cells."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ENCODING = "utf-8-sig"


class Layout(NamedTuple):
    """How a file separates its cells, and the names of its columns."""

    separator: str
    decimal: str
    names: list[str]

    def rows(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self.separator, skipinitialspace=True)


def layout_of(path: Path) -> Layout:
    """Commas, semicolons (with decimal commas) or tabs; the first line names the columns, each once."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}: check the path.")
    with _sentences(path), path.open(encoding=ENCODING, newline="") as file:
        head = file.readline()
        if not head.strip():
            raise ValueError(f"{path} is empty: the first line must name the columns.")
        outside_quotes = re.sub(r'"[^"]*"', "", head)
        layout = Layout(max(",;\t", key=outside_quotes.count), ".", [])
        names = [name.strip() for name in next(layout.rows([head]))]
        decimal = "," if layout.separator == ";" and any(map(_decimal_comma, layout.rows(file))) else "."
    twice = [name for name, times in Counter(names).items() if name and times > 1]
    if twice:
        raise ValueError(f"{path} has two columns named {twice[0]!r}. Rename one of them.")
    return layout._replace(decimal=decimal, names=names)


def _decimal_comma(cells: Sequence[str]) -> bool:
    return any("," in cell and cell.strip().replace(",", "", 1).lstrip("+-").isdigit() for cell in cells)


def rows_of(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """(number of the row, its cells) below the first line, empty lines left out."""
    with _sentences(path), path.open(encoding=ENCODING, newline="") as file:
        for row, cells in enumerate(layout.rows(file)):
            if row and cells:
                yield row, cells


def too_long(path: Path, row: int, cells: Sequence[str], layout: Layout) -> ValueError:
    return ValueError(
        f"Row {row} of {path} has {len(cells)} cells, but its first line names {len(layout.names)} columns. "
        "Name them all."
    )


def not_text(path: Path) -> ValueError:
    return ValueError(f"{path} is not UTF-8 text: save it as CSV UTF-8.")


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """What goes wrong while reading, in a sentence."""
    try:
        yield
    except UnicodeDecodeError:
        raise not_text(path) from None
    except csv.Error as error:
        limit = f"a cell has more than {csv.field_size_limit()} characters"
        reason = limit if "field limit" in str(error) else str(error)
        raise ValueError(f"{path} is not a table: {reason}. Is a quote missing?") from None
