"""Tables of files as data frames, and written back as they were."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.errors import require_package
from bilevelax.base.whole_files import appearing, told_if_not_written
from bilevelax.datasets.csv_layout import ENCODING, Layout, layout_of, not_text, rows_of, too_long
from bilevelax.tables.cells import is_text, read_cells
from bilevelax.tables.other_files import kind_of, read_other, require_ending, unpacked, write_table

LONGEST = 60  # characters of a cell in a sentence
LOOKED = 1_000  # rows
THOUSANDS = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$"
FORMULA = r"[=+\-@]."  # a lone dash is none


def pandas() -> Any:
    return require_package("pandas", "bilevelax newsvendor", "sklearn")


class Told(NamedTuple):
    """A file as a data frame, and what is to be said of it."""

    table: Any
    notes: list[str]  # cells that were not read as they stand
    faults: dict[str, str]  # column of numbers with a few words in it: the sentence that refuses it as one of numbers


def read_table(path: str | Path) -> Any:
    """A file as a data frame."""
    return read_told(path).table


def read_told(path: str | Path) -> Told:
    """A file as a data frame, with what is to be said of it."""
    path = Path(path).expanduser()
    if kind_of(path) in ("xlsx", "parquet"):
        return _typed(read_other(path), path, ".")
    with unpacked(path) as plain:
        layout = layout_of(plain)
        told = _typed(_read(plain, layout, decimal=layout.decimal), path, layout.decimal)
        told.notes.extend(_thousands(plain, layout, told.table))
        return told


def _typed(table: Any, path: Path, decimal: str) -> Told:
    """Columns of text that hold numbers as numbers; where a few cells are words, these stay as they are."""
    pd, told = pandas(), Told(table, [], {})
    for name in table.columns:
        cells = read_cells(table[name], name, decimal, pd) if is_text(table[name], pd) else None
        if cells is None:
            continue
        table[name] = cells.numbers
        told.notes.extend(cells.notes)
        if len(cells.wrong):
            others = f", and {len(cells.wrong) - 1} more such cells" if len(cells.wrong) > 1 else ""
            told.faults[name] = (
                f"Column {name!r} of {path} holds numbers, but {shown(cells.wrong.iloc[0])} in row "
                f"{cells.wrong.index[0] + 1}{others}. Mend or empty such cells; if its numbers are names: "
                f"--category {name}."
            )
            table[name] = table[name].astype(object)
            table.loc[cells.wrong.index, name] = cells.wrong
    return told


def _thousands(path: Path, layout: Layout, table: Any) -> list[str]:
    """Columns of which every fraction has three digits: spreadsheets may mean thousands by that.

    Between commas only where some numbers have no point, as those below 1000 would.
    """
    if layout.decimal == ",":
        return []
    notes = []
    for name, cells in _read(path, layout, dtype=str, keep_default_na=False, nrows=LOOKED).items():
        cells = cells.str.strip()
        dotted = cells[cells.str.contains(".", regex=False)]
        if layout.separator == "," and len(dotted) == (cells != "").sum():
            continue  # a program that writes three digits after each point
        if not is_text(table[name], pandas()) and len(dotted) and dotted.str.match(THOUSANDS).all():
            cell = dotted.iloc[0]
            notes.append(
                f"{name}: {cell!r} is read as {float(cell):g}. All its numbers have three digits after the point: if "
                f"it separates thousands, write {cell.replace('.', '')}"
            )
    return notes


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
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def write_with(path: Path, columns: dict[str, np.ndarray], out: Path) -> list[str]:
    """The file ``path`` with columns added or replaced, every other cell as it was; returns what to tell of it."""
    path, how = path.expanduser(), {}
    require_ending(out)
    if kind_of(path) in ("xlsx", "parquet"):
        table = read_other(path)
    else:
        with unpacked(path) as plain:
            layout = layout_of(plain)
            table = _read(plain, layout, dtype=str, keep_default_na=False)
        how = {"sep": layout.separator, "decimal": layout.decimal}
    replaced = [f"column {name} of {path} was replaced" for name in columns if name in table.columns]
    with told_if_not_written(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        ours = not out.is_symlink() and (out.is_file() or not out.exists())  # /dev/stdout is written as it is
        with appearing(out) if ours else contextlib.nullcontext((out,)) as (place,):
            write_table(table.assign(**columns), place, **how)
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
