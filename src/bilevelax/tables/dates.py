"""Dates as people write them in tables."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from bilevelax.tables.csv_files import pandas, shown

NUMERIC = r"^\s*(\d{1,2})([./-])(\d{1,2})[./-]\d{4}"  # 31.12.2024, 12/31/2024
OFFSET = r"(:\d\d(?:\.\d+)?)\s*(?:Z|[+-]\d{2}:?\d{2})$"  # of a time zone: the date is the local one

LONGEST = 64  # characters of a date: parsers take ever longer over more


def reads_day_first(column: Any) -> bool:
    """31.12.2024 always; 31/12/2024 and 31-12-2024 where some first number is no month."""
    parts = column.astype(str).str[:LONGEST].str.extract(NUMERIC).dropna()
    return bool(len(parts) and ((parts[1] == ".").all() or (parts[0].astype(int) > 12).any()))


def dates_of(table: Any, name: str, path: Any, day_first: bool) -> Any:
    """The column as dates, or a sentence."""
    column = table[name]
    if column.isna().any():
        at = int(np.argmax(column.isna()))
        raise ValueError(f"Column {name!r} of {path} must hold a date in every row. One is missing in row {at + 1}.")
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
    if pd.api.types.is_numeric_dtype(column):  # 20241231; as a number it would be nanoseconds since 1970
        whole = column.astype(float) % 1 == 0
        return pd.to_datetime(column.where(whole, 0).astype("int64").astype(str), format="%Y%m%d", errors="coerce")
    text = column.astype(str).str.strip()
    text = text.where(text.str.len() <= LONGEST, "").str.replace(OFFSET, r"\1", regex=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it had to guess the format
        return pd.to_datetime(text, dayfirst=day_first, errors="coerce")
