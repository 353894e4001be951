"""CSV files as data frames, and written back as they were."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.base.errors import require_package
from bilevelax.datasets.csv_layout import ENCODING, Layout, layout_of, not_text, rows_of, too_long

LONGEST = 60  # characters of a cell in a sentence
FORMULA = r"[=+\-@]."  # a lone dash is none


def pandas() -> Any:
    return require_package("pandas", "bilevelax newsvendor", "sklearn")


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
            # what a file is called says nothing of what it holds: compression=None
            how = {"sep": layout.separator, "encoding": ENCODING, "skipinitialspace": True, "compression": None}
            table = pd.read_csv(path, index_col=False, **how, **options)
    except pd.errors.ParserError as error:
        raise ValueError(f"{path} is not a table: {str(error).splitlines()[0]}.") from None
    except UnicodeDecodeError:
        raise not_text(path) from None
    if told:  # rows are longer than the header
        _require_empty_ends(path, layout)
    table.columns = [str(name).strip() for name in table.columns]
    return table


def _require_empty_ends(path: Path, layout: Layout) -> None:
    """What stands beyond the last named column must be empty, as after a separator at the end of a line."""
    for row, cells in rows_of(path, layout):
        if any(cell.strip() for cell in cells[len(layout.names) :]):
            raise too_long(path, row, cells, layout)


def shown(value: Any) -> str:
    """A cell for a sentence, however long it is."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def write_with(path: Path, columns: dict[str, np.ndarray], out: Path) -> list[str]:
    """The file ``path`` with columns added or replaced, every other cell as it was; returns what to tell of it."""
    path = path.expanduser()
    layout = layout_of(path)
    table = _read(path, layout, dtype=str, keep_default_na=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    how = {"sep": layout.separator, "decimal": layout.decimal, "compression": None}
    table.assign(**columns).to_csv(out, index=False, **how)
    replaced = [f"column {name} of {path} was replaced" for name in columns if name in layout.names]
    return [*replaced, *_formulas(table.drop(columns=list(columns), errors="ignore"))]


def _formulas(table: Any) -> list[str]:
    """Cells that spreadsheets would compute: they begin with = + - or @ and are no number."""
    notes = []
    for name in table.columns:
        column = table[name].astype(str).str.strip()
        odd = column[column.str.match(FORMULA)]
        odd = odd[pandas().to_numeric(odd.str.replace(",", ".", regex=False), errors="coerce").isna()]  # -3,5 is none
        if len(odd):
            cell = shown(odd.iloc[0])[1:-1]
            notes.append(
                f"{len(odd)} cells of column {name} begin like a formula ({cell}): import the file as text into a "
                "spreadsheet"
            )
    return notes
