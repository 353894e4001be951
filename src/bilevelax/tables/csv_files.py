"""CSV files as they come: separators, decimal commas, a byte order mark; and written back as they were."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevelax.errors import require_package

ENCODING = "utf-8-sig"


def pandas() -> Any:
    return require_package("pandas", "bilevelax newsvendor", "sklearn")


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
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            head = file.readline()
            if not head.strip():
                raise ValueError(f"{path} is empty: the first line must name the columns.")
            outside_quotes = re.sub(r'"[^"]*"', "", head)
            layout = Layout(max(",;\t", key=outside_quotes.count), ".", [])
            decimal = "," if layout.separator == ";" and any(map(_decimal_comma, layout.rows(file))) else "."
    except UnicodeDecodeError:
        raise _not_text(path) from None
    names = [name.strip() for name in next(layout.rows([head]))]
    for name in names:
        if name and names.count(name) > 1:
            raise ValueError(f"{path} has two columns named {name!r}. Rename one of them.")
    return layout._replace(decimal=decimal, names=names)


def _decimal_comma(cells: Sequence[str]) -> bool:
    return any("," in cell and cell.strip().replace(",", "", 1).lstrip("+-").isdigit() for cell in cells)


def _not_text(path: Path) -> ValueError:
    return ValueError(f"{path} is not UTF-8 text: save it as CSV UTF-8.")


def read_table(path: str | Path) -> Any:
    """A CSV file as a data frame."""
    path = Path(path).expanduser()
    layout = layout_of(path)
    return _read(path, layout, decimal=layout.decimal)


def _read(path: Path, layout: Layout, **options: Any) -> Any:
    pd = pandas()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", pd.errors.ParserWarning)
            table = pd.read_csv(
                path, sep=layout.separator, encoding=ENCODING, skipinitialspace=True, index_col=False, **options
            )
    except pd.errors.ParserError as error:
        raise ValueError(f"{path} is not a table: {str(error).splitlines()[0]}.") from None
    except UnicodeDecodeError:
        raise _not_text(path) from None
    if told:  # rows are longer than the header
        _require_empty_ends(path, layout)
    table.columns = [str(name).strip() for name in table.columns]
    return table


def _require_empty_ends(path: Path, layout: Layout) -> None:
    """What stands beyond the last named column must be empty, as after a separator at the end of a line."""
    width = len(layout.names)
    with path.open(encoding=ENCODING, newline="") as file:
        for row, cells in enumerate(layout.rows(file)):
            if row and any(cell.strip() for cell in cells[width:]):
                raise ValueError(
                    f"Row {row} of {path} has {len(cells)} cells, but its first line names {width} columns. "
                    "Name them all."
                )


def write_with(path: Path, columns: dict[str, np.ndarray], out: Path) -> list[str]:
    """The file ``path`` with columns added (or replaced: their names are returned), every other cell as it was."""
    path = path.expanduser()
    layout = layout_of(path)
    table = _read(path, layout, dtype=str, keep_default_na=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    table.assign(**columns).to_csv(out, index=False, sep=layout.separator, decimal=layout.decimal)
    return [name for name in columns if name in layout.names]
