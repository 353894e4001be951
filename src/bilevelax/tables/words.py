"""Words of a column that are names: the same name however the rest of the column is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.tables.csv_files import pandas

MISSING_CATEGORY = "(missing)"


def levels(column: Any) -> tuple[np.ndarray, list[str]]:
    """(number of each row's word, the words); a missing value is a word, too."""
    codes, found = pandas().factorize(column)
    words = [word(value) for value in found]
    if (codes < 0).any():
        codes, words = np.where(codes < 0, len(words), codes), [*words, MISSING_CATEGORY]
    return codes, words


def word(value: Any) -> str:
    """A category's name, the same for 7, 7.0 and 007: how a number is read depends on the rest of its column."""
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    if not np.isfinite(number):
        return text
    return str(int(number)) if number.is_integer() else repr(number)
