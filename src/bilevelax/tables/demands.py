"""Demands of a table: the rows that have them, and what is suspicious about them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.sentences import counted
from bilevelax.tables.csv_files import pandas, shown
from bilevelax.tables.health import demand_findings, launch_findings


class Demands(NamedTuple):
    """Rows of a table with known demand."""

    table: Any
    y: np.ndarray  # (rows, targets)
    rows: np.ndarray  # their places in the file, from 1
    notes: list[str]  # what was left out
    health: list[str]  # what to look at


def numbers_of(column: Any) -> Any:
    """The column's numbers; not a number where there is none."""
    try:
        return pandas().to_numeric(column, errors="coerce")
    except OverflowError:  # integers of hundreds of digits among texts: as texts they become infinite
        return pandas().to_numeric(column.astype(str), errors="coerce")


def targets_of(table: Any, names: list[str], path: Any) -> Demands:
    """The rows with known demand."""
    for name in names:
        if name not in table.columns:
            raise ValueError(f"{path} has no column {name!r}; it has {', '.join(map(printable, table.columns))}.")
    numbers = {}
    for name in names:
        numbers[name] = numbers_of(table[name])
        bad = (numbers[name].isna() & table[name].notna()).to_numpy() | np.isinf(numbers[name].to_numpy(float))
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(
                f"Column {name!r} of {path} must hold numbers. Got {shown(table[name].iloc[at])} in row {at + 1}."
            )
    y = pandas().DataFrame(numbers)
    known = y.notna().all(axis=1).to_numpy()
    without = counted(int((~known).sum()), "row without demand was", "rows without demand were")
    notes = [f"{without} left out"] if not known.all() else []
    if known.sum() < 2:
        raise ValueError(f"{path} has {int(known.sum())} row(s) with known demand: at least 2 are needed.")
    y_known, rows = y[known].to_numpy(float), np.flatnonzero(known) + 1
    found = [*launch_findings(y, known), *demand_findings(y_known, names, rows)]
    return Demands(table[known].reset_index(drop=True), y_known, rows, notes, found)


def printable(text: Any) -> str:
    """Control characters spelled out: a column's name cannot move the cursor or colour the screen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
