"""Past demand as context: demand k days before, and means over the k days that were known by then."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.base.declared import integer, list_of, number, record
from bilevelax.tables.windows import BEYOND, History, sums

Lags = dict[str, Any]  # as stored in a model

MOST = 400  # days back
USUAL = (7, 28)  # days that "auto" looks back
TIMES = 8  # how often the same way back again, where that day has no row
DECLARED = record({"days": list_of(integer(1, MOST), least=1, most=20), "fill": list_of(number(), least=1)})


def lags_option(words: str) -> list[int]:
    """``--lags 7,28`` as numbers."""
    try:
        found = sorted({int(word) for word in words.split(",") if word.strip()})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > MOST:
        raise ValueError(f"`--lags` must be days back between 1 and {MOST}, such as 7,28, or auto. Got {words!r}.")
    return found


def days_asked(words: str, days: np.ndarray | None) -> list[int]:
    """Those of the option; of ``auto`` a week and four of them, where so many days were seen four times."""
    if words != "auto":
        return lags_option(words)
    return list(USUAL) if days is not None and len(np.unique(days)) >= 4 * max(USUAL) else []


def learn_lags(days: list[int], y: np.ndarray) -> Lags:
    """``fill`` stands where a series has no past yet."""
    return {"days": days, "fill": [float(value) for value in np.median(y, axis=0)]}


def names(lags: Lags | None, targets: list[str]) -> list[str]:
    if not lags:
        return []
    return [name for target in targets for k in lags["days"] for name in _names(target, k)]


def _names(target: str, k: int) -> tuple[str, str]:
    return f"{target} {k} days before", f"{target} mean of {k} days"


def columns(
    lags: Lags, targets: list[str], history: History, days: np.ndarray, series: np.ndarray
) -> tuple[dict[str, np.ndarray], list[str]]:
    """(name: values for each row, what to tell).

    A row of day t sees D(t - k), and the mean of the k days up to t - k_1, where k_1 is the least lag: an order for
    day t is placed at most k_1 days before. A day without a row is looked for another k days before, up to 8 times.
    """
    made = {}
    least, fill = min(lags["days"]), np.asarray(lags["fill"])
    late = sums(history, series, days - least, np.full(len(days), BEYOND // 2))[1] == 0
    for k in lags["days"]:
        before = np.full((len(days), len(targets)), np.nan)
        mean = before.copy()
        for again in range(1, TIMES + 1):
            value, there = sums(history, series, days - again * k, days - again * k)
            before = np.where(np.isnan(before) & (there > 0)[:, None], value / np.maximum(there, 1)[:, None], before)
            back = days - least - (again - 1) * k
            total, rows = sums(history, series, back - k + 1, back)
            mean = np.where(np.isnan(mean) & (rows > 0)[:, None], total / np.maximum(rows, 1)[:, None], mean)
        for j, target in enumerate(targets):
            for name, values in zip(_names(target, k), (before[:, j], mean[:, j]), strict=True):
                made[name] = np.where(np.isnan(values), fill[j], values)
    if not late.any():
        return made, []
    told = f"{int(late.sum())} rows have no known demand on the days before them, so older days stand for these"
    return made, [f"{told}: `bilevelax newsvendor update` takes newer rows"]
