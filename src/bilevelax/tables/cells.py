"""Columns of text that hold numbers as people write them: 60%, $1.99, 12,5, 8.140, 1 234, and a dash for none."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.sentences import counted

NONE = ("", "-", "--", "\u2013", "\u2014", "?", ".", "na", "n/a", "nan", "none", "null", "#n/a", "missing", "unknown")
UNITS = r"(?:[$\u20ac\u00a3%]|\b(?:EUR|USD|GBP|CHF)\b|\u00b0[CF]?)"  # before or after the number
GAPS = r"(?<=\d)[ \u00a0\u202f'\u2019](?=\d{3}(?:\D|$))"  # between thousands: 1 234 and 1'234
FAULTY = 0.05  # of a column's values that are no numbers: it is one of numbers with faults
LONGEST = 40  # characters of a number


class Cells(NamedTuple):
    """A column of text read as numbers."""

    numbers: Any  # not a number where there is none
    wrong: Any  # cells that are neither numbers nor words for none
    notes: list[str]


def read_cells(column: Any, name: str, decimal: str, pd: Any) -> Cells | None:
    """The column as numbers, or None where it is one of words."""
    text = column.astype(str).str.strip()
    none = column.isna() | text.str.lower().isin(NONE)
    given = text[~none]
    bare = given.where(given.str.len() <= LONGEST, "").str.replace(UNITS, "", regex=True).str.strip()
    if not len(bare):
        return None
    written, style = _plain(bare.str.replace(GAPS, "", regex=True), decimal)
    numbers = pd.to_numeric(written, errors="coerce").astype(float)
    good = np.isfinite(numbers)
    if (~good & ~_either_mark(bare, pd)).sum() > FAULTY * len(bare):
        return None
    notes = _missing(name, text[none & column.notna()]) + _changed(name, given[good], numbers[good], decimal, style, pd)
    return Cells(numbers.reindex(column.index), given[~good], notes)


def _plain(bare: Any, decimal: str) -> tuple[Any, str]:
    """(the numbers with a decimal point and no other mark, how they were written)"""
    other = "." if decimal == "," else ","
    marked = bare[bare.str.contains(other, regex=False)]
    if not len(marked):
        return bare.str.replace(decimal, ".", regex=False), ""
    if marked.str.match(rf"^[+-]?\d{{1,3}}(?:\{other}\d{{3}})+(?:\{decimal}\d+)?$").all():
        whole = bare.str.replace(other, "", regex=False).str.replace(decimal, ".", regex=False)
        return whole, f"{other!r} separates thousands"
    if bare.str.contains(decimal, regex=False).any():  # 12,5 beside 12.5: no one reading fits
        return bare.drop(marked.index).str.replace(decimal, ".", regex=False).reindex(bare.index), ""
    return bare.str.replace(other, ".", regex=False), f"{other!r} is the decimal mark"


def _either_mark(bare: Any, pd: Any) -> Any:
    """Numbers with a comma or a point: a column that mixes both is one of numbers with faults, however many."""
    return np.isfinite(pd.to_numeric(bare.str.replace(",", ".", regex=False), errors="coerce").astype(float))


def _missing(name: str, cells: Any) -> list[str]:
    if not len(cells):
        return []
    words = ", ".join(map(repr, sorted(set(cells))[:3]))
    told = counted(len(cells), f"cell holds {words} and counts", f"cells hold {words} and count")
    return [f"{name}: {told} as missing"]


def _changed(name: str, given: Any, numbers: Any, decimal: str, style: str, pd: Any) -> list[str]:
    """An example of a cell that is not what a program would read."""
    odd = given.index[pd.to_numeric(given.str.replace(decimal, ".", regex=False), errors="coerce") != numbers]
    if not len(odd):
        return []
    return [f"{name}: {given[odd[0]]!r} is read as {numbers[odd[0]]:.12g}{f' ({style})' if style else ''}"]


def is_text(column: Any, pd: Any) -> bool:
    """Whether a column holds words, whatever pandas calls that."""
    return bool(pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column))
