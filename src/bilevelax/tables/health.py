"""Data health: what an analyst should look at before a rule is believed. Nothing here changes a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.base.sentences import counted
from bilevelax.tables.cells import is_text
from bilevelax.tables.columns import MANY_VALUES
from bilevelax.tables.csv_files import pandas, shown
from bilevelax.tables.dates import is_ambiguous, is_serial

FAR = 20.0  # quartile distances from the upper quartile: beyond, a demand is taken for a typo
TIMES = 10.0  # and so many times the median
FEWEST_DAYS, A_WEEK = 14, 7  # numbers that may be dates, and the days between two of them
LEAK = 0.99  # correlation of a column with the demand that nobody could have known before
CLOSE = 0.95  # one that is worth a question
SHARE = 0.2  # of the rows lost to one product, or shared with the training rows
NAMES, NAMED_ROWS, NAMED = (4, 1_000), 5, 5.0  # different numbers that may be names, rows of each, and F from which on
FEW_NAMES, NAMED_FEW = 8, 25.0  # below so many numbers F has few degrees of freedom
MOST_NUMBERS = 0.5  # of the cells of a column that is not used: then it was meant as one of numbers


def demand_findings(y: np.ndarray, names: list[str], rows: np.ndarray) -> list[str]:
    """Demands that look like typos or returns; ``rows`` are their places in the file."""
    found = []
    for name, values in zip(names, y.T, strict=True):
        negative = np.flatnonzero(values < 0)
        if len(negative):
            below = counted(len(negative), "demand is", "demands are")
            found.append(
                f"{name}: {below} below 0 ({values[negative[0]]:.12g} in row {rows[negative[0]]}). "
                "Returns? Write what was asked for, or leave these rows out"
            )
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        far = np.flatnonzero((values > high + FAR * max(high - low, 0.05 * abs(middle))) & (values > TIMES * middle))
        if len(far):
            at = far[np.argmax(values[far])]
            found.append(
                f"{name}: {values[at]:.12g} in row {rows[at]} is {_times(values[at], middle)} the median. "
                "A typo? It raises every order; mend it or leave the row out"
            )
    return found


def zero_findings(y: np.ndarray, names: list[str]) -> list[str]:
    """Products that begin with a long run of 0: not sold yet, or not asked for?"""
    found = []
    for name, values in zip(names, y.T, strict=True):
        first = int(np.argmax(values != 0))
        if first > SHARE * len(values):
            found.append(
                f"{name} is 0 on the first {first} of {len(values)} rows. If it was not sold yet, empty these cells "
                "and fit it alone"
            )
    return found


def _times(value: float, middle: float) -> str:
    return f"{value / middle:,.0f} times" if middle > 0 else "far above"


def launch_findings(y: Any, known: np.ndarray) -> list[str]:
    """Products without demand on days that others have: their rows are lost for all."""
    found = []
    for name in y.columns:
        alone = int((y[name].isna().to_numpy() & y.drop(columns=name).notna().all(axis=1).to_numpy()).sum())
        if y.shape[1] > 1 and alone > SHARE * len(y):
            found.append(
                f"{name} has no demand in {alone} rows, which are lost for all products "
                f"({int(known.sum())} of {len(y)} remain). Fit it alone: one model for each --target"
            )
    return found


def date_findings(table: Any, date: str | None, day_first: bool) -> list[str]:
    """How dates were read where they could be read otherwise."""
    if date is None:
        return [
            f"{name} looks like dates and is {'not used' if is_text(table[name], pandas()) else 'used as a number'}: "
            f"name it with --date {quoted(name)}"
            for name in table.columns
            if _are_dates(table[name])
        ]
    if is_serial(table[date]):
        return [f"{date}: {int(table[date].iloc[0])} is read as a spreadsheet's count of days"]
    if is_ambiguous(table[date]):
        how = "day first" if day_first else "month first"
        return [
            f"{date}: {table[date].iloc[0]} is read {how}; no row tells it apart from the other way. "
            "Write dates as 2024-12-31 to be sure"
        ]
    return []


def quoted(name: Any) -> str:
    """For a command line."""
    return f'"{name}"' if " " in str(name) else str(name)


def _are_dates(column: Any) -> bool:
    if pandas().api.types.is_numeric_dtype(column):
        return _are_days_in_a_row(column.dropna())
    text = column.dropna().astype(str).str.strip()
    return len(text) > 0 and bool(text.str.match(r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})\b").all())


def _are_days_in_a_row(column: Any) -> bool:
    """Numbers such as 45292 or 20240101 that rise by a day from row to row: demands and prices do not."""
    pd = pandas()
    if len(column) < FEWEST_DAYS or (column % 1 != 0).any():
        return False
    if is_serial(column):
        days = column.astype(float)
    else:
        days = pd.to_datetime(column.astype("int64").astype(str), format="%Y%m%d", errors="coerce")
        days = (days - pd.Timestamp(0)).dt.days
    return bool(days.notna().all() and (days.drop_duplicates().sort_values().diff().dropna() <= A_WEEK).mean() > 0.9)


def unused_findings(table: Any, ignored: dict[str, str], rows: np.ndarray) -> list[str]:
    """Columns that are left out though most of their cells are numbers, or all differ, and are no dates."""
    found = []
    for name, why in ignored.items():
        if name not in table.columns or not is_text(table[name], pandas()) or _are_dates(table[name]):
            continue
        cells = table[name].dropna().astype(str).str.strip()
        numbers = pandas().to_numeric(cells, errors="coerce").notna()
        if len(cells) and numbers.mean() >= MOST_NUMBERS and not numbers.all():
            at = int(np.argmax(~numbers.to_numpy()))
            found.append(
                f"{name} is not used: {int(numbers.sum())} of {len(cells)} cells are numbers, but "
                f"{shown(cells.iloc[at])} in row {rows[cells.index[at]]} is none. Empty such cells, or split the "
                "column in two"
            )
        elif len(cells) and "identifier" in why:
            found.append(
                f"{name} is not used: {why}, such as {shown(cells.iloc[0])}. If these are numbers, take away what "
                "stands beside the digits; if they are names of products, see --id"
            )
    return found


def same_day_findings(when: Any, rows: np.ndarray) -> list[str]:
    """Days that have a second row where nearly all have one: an entry that was corrected, and not taken out?"""
    again = when.duplicated(keep=False).to_numpy()
    if not again.any() or again.mean() > SHARE:
        return []
    first = np.flatnonzero(again & (when == when[again].iloc[0]).to_numpy())[:2]
    told = counted(int(when.duplicated().sum()), "row is", "rows are")
    return [
        f"{told} of a day that has another row ({when.iloc[first[0]]:%Y-%m-%d} in "
        f"rows {rows[first[0]]} and {rows[first[1]]}). Entered twice? Leave one out; of different products? Name the "
        "column that tells them apart with --id"
    ]


def long_findings(when: Any, columns: dict[str, dict[str, Any]], date: str) -> list[str]:
    """Several rows on most days, and nothing that says of what: a row for each product?"""
    again = when.duplicated(keep=False).mean()
    if again <= 1 - SHARE:
        return []
    many = round(len(when) / when.nunique())
    named = [quoted(name) for name, how in columns.items() if how["kind"] == "category"]
    such = f", such as --id {','.join(named)}" if named else ""
    return [
        f"{date}: most days have about {many} rows. If each row is of another product or store, name the columns that "
        f"tell them apart with --id{such}: each then has its own typical demand, costs and table"
    ]


def repeated_findings(table: Any, names: list[str], rows: np.ndarray) -> list[str]:
    """Rows that agree in everything known before, and contradict each other in demand."""
    before = [name for name in table.columns if name not in names]
    if not before:
        return []
    same = table.duplicated(before, keep=False)
    groups = table[same].groupby(before, dropna=False, sort=False)[names].nunique()
    bad = groups[(groups > 1).any(axis=1)]
    if not len(bad):
        return []
    twins = table[same & ~table.duplicated([*before, *names], keep=False)]
    first = [int(rows[i]) for i in twins.index[:2]]
    told = counted(len(bad), "set of rows is", "sets of rows are")
    return [
        f"{told} equal but for their demand (rows {' and '.join(map(str, first))}). "
        "A day entered twice, or a column that tells them apart is missing"
    ]


def column_findings(table: Any, columns: dict[str, dict[str, Any]], y: np.ndarray, names: list[str]) -> list[str]:
    """Columns that give the demand away, and numbers that are names."""
    found = []
    for column, how in columns.items():
        if how["kind"] != "number":
            continue
        values = pandas().to_numeric(table[column], errors="coerce").to_numpy(float)
        ok = np.isfinite(values)
        for name, demand in zip(names, y.T, strict=True):
            close = _closeness(values[ok], demand[ok]) if ok.sum() > MANY_VALUES else 0.0
            if close > CLOSE:
                found.append(_leak(column, name, close))
            elif _are_names(values, demand):
                found.append(
                    f"{column} is used as a number, but its {len(np.unique(values))} whole numbers look like names "
                    f"(demand jumps between them). If they are: --category {column}"
                )
                break
    return found


def _are_names(values: np.ndarray, demand: np.ndarray) -> bool:
    """Whether mean demands of whole numbers lie far from every parabola: an F test of groups against it."""
    if not (np.isfinite(values).all() and (values % 1 == 0).all()):
        return False
    found, codes = np.unique(values, return_inverse=True)
    k, n = len(found), len(values)
    if not (NAMES[0] <= k <= NAMES[1]) or n < NAMED_ROWS * k:
        return False
    curve = np.vander((values - values.mean()) / values.std(), 3)
    rest = demand - curve @ np.linalg.lstsq(curve, demand, rcond=None)[0]
    within = demand - (np.bincount(codes, demand) / np.bincount(codes))[codes]
    between = (rest @ rest - within @ within) / (k - 3)
    return bool(between > (NAMED if k >= FEW_NAMES else NAMED_FEW) * max(float(within @ within) / (n - k), 1e-300))


def _leak(column: Any, name: str, close: float) -> str:
    told = f"gives {name} away (correlation above {LEAK})"
    if close <= LEAK:
        told = f"follows {name} closely (correlation {close:.2f})"
    return f"{column} {told}. If it is not known before the day, take the column out of the file"


def _closeness(values: np.ndarray, demand: np.ndarray) -> float:
    """Correlation along a line, or along any curve that rises or falls where demand takes many values."""
    line = _correlation(values, demand)
    if line > LEAK or len(np.unique(demand)) <= MANY_VALUES:
        return line
    return max(line, _correlation(*(pandas().Series(a).rank().to_numpy() for a in (values, demand))))


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(abs(np.corrcoef(a, b)[0, 1])) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def trained_on(X: np.ndarray, y: np.ndarray, kept_X: np.ndarray, kept_y: np.ndarray) -> list[str]:
    """Whether a model is judged on the rows that it learnt from."""
    seen = {row.tobytes() for row in np.column_stack([kept_X, kept_y.reshape(len(kept_X), -1)]).astype(float)}
    both = np.column_stack([X, y.reshape(len(X), -1)]).astype(float)
    shared = sum(row.tobytes() in seen for row in both)
    if shared <= SHARE * len(both):
        return []
    return [
        f"{shared} of {len(both)} rows are rows that the model was trained on: costs of new days will be higher. "
        "Keep the last days out of fit, and evaluate on them"
    ]
