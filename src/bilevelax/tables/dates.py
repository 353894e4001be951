"""Dates as people write them in tables."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from bilevelax.tables.cells import is_text
from bilevelax.tables.csv_files import pandas, shown

NUMERIC = r"^\s*(\d{1,2})([./-])(\d{1,2})[./-](?:\d{4}|\d{2})(?!\d)"  # 31.12.2024, 12/31/2024, 31/12/24
NAMES = ("date", "datum")  # of a column of dates, whatever its capitals
SERIAL = (20_000, 80_000)  # days since 1899-12-30, as spreadsheets count them: 1954 to 2119
OFFSET = r"(:\d\d(?:\.\d+)?)\s*(?:Z|[+-]\d{2}:?\d{2})$"  # of a time zone: the date is the local one

YEAR_FIRST = r"^\d\d([./-])\d\d\1\d\d$"  # 24/12/31, or a day first
SCATTERED = 10.0  # times as many days from row to row as when the year is read first

LONGEST = 64  # characters of a date: parsers take ever longer over more


def reads_day_first(column: Any) -> bool:
    """31.12.2024 always; 31/12/2024 and 31/12/24 where some first number is no month.

    Where every number could be a month, the reading in which the days lie closer together.
    """
    parts = column.astype(str).str[:LONGEST].str.extract(NUMERIC).dropna()
    if not len(parts) or (parts[1] == ".").all():
        return bool(len(parts))
    if (parts[0].astype(int) > 12).any():
        return True
    return is_ambiguous(column) and _length(column, True) < _length(column, False)


def is_ambiguous(column: Any) -> bool:
    """Whether 02/05/2024 could be in February and in May, and no other row tells."""
    parts = column.astype(str).str[:LONGEST].str.extract(NUMERIC).dropna()
    slashes = parts[parts[1] != "."]
    return bool(len(slashes) and (slashes[[0, 2]].astype(int) <= 12).all(axis=None))


def is_year_first(column: Any) -> bool:
    """Whether 13/10/04 is in 2013: with the year first the days follow each other, with the day first they do not."""
    if not is_text(column, pandas()) or not len(column):
        return False
    text = column.astype(str).str.strip()
    if not text.str[:LONGEST].str.match(YEAR_FIRST).all():
        return False
    turned = "20" + text.str[:2] + "-" + text.str[3:5] + "-" + text.str[6:]
    first, last = _length(turned, False), min(_length(column, True), _length(column, False))
    return 0 < SCATTERED * first < last and bool(_parsed(turned, False).notna().all())


def _length(column: Any, day_first: bool) -> float:
    """Days from row to row, added up."""
    days = _parsed(column, day_first).dropna()
    return float(abs(days.diff().dt.total_seconds()).sum()) if len(days) > 1 else 0.0


def date_column(table: Any) -> str | None:
    """The column called date, Date or Datum, if there is one."""
    return next((name for name in table.columns if str(name).lower() in NAMES), None)


def is_serial(column: Any) -> bool:
    """Whether dates are numbers as spreadsheets store them."""
    if not pandas().api.types.is_numeric_dtype(column) or not len(column.dropna()):
        return False
    values = column.dropna().astype(float)
    return bool(((values % 1 == 0) & (values > SERIAL[0]) & (values < SERIAL[1])).all())


def dates_of(table: Any, name: str, path: Any, day_first: bool) -> Any:
    """The column as dates, or a sentence."""
    column = table[name]
    if column.isna().any():
        at = int(np.argmax(column.isna()))
        raise ValueError(f"Column {name!r} of {path} must hold a date in every row. One is missing in row {at + 1}.")
    if is_year_first(column):
        raise ValueError(
            f"Column {name!r} of {path} seems to have the year first ({shown(column.iloc[0])} in row 1), which cannot "
            f"be told from the day. Write dates as 20{str(column.iloc[0]).strip().replace('/', '-').replace('.', '-')}."
        )
    when = _parsed(column, day_first)
    if when.isna().any():
        at = int(np.argmax(when.isna()))
        raise ValueError(
            f"Column {name!r} of {path} must hold dates such as 2024-12-31, all written alike. "
            f"Got {shown(column.iloc[at])} in row {at + 1}."
        )
    return when


def _parsed(column: Any, day_first: bool) -> Any:
    """Not a time where it is no date."""
    pd = pandas()
    if pd.api.types.is_datetime64_any_dtype(column):
        return column
    if is_serial(column):
        return pd.to_datetime(column, unit="D", origin="1899-12-30")
    if pd.api.types.is_numeric_dtype(column):  # 20241231; as a number it would be nanoseconds since 1970
        whole = column.astype(float) % 1 == 0
        return pd.to_datetime(column.where(whole, 0).astype("int64").astype(str), format="%Y%m%d", errors="coerce")
    text = column.astype(str).str.strip()
    text = text.where(text.str.len() <= LONGEST, "").str.replace(OFFSET, r"\1", regex=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it had to guess the format
        return pd.to_datetime(text, dayfirst=day_first, errors="coerce")
