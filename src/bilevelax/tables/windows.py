"""Sums of demand over days of one series: what lags, rolling means and protection periods are made of.

Days are whole numbers. All windows are found by two searches in one sorted array, whatever their number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

BEYOND = 2**22  # days; no date is as late


class History(NamedTuple):
    """Demands (rows, targets) of series by day."""

    days: np.ndarray
    series: np.ndarray  # its number, from 0
    y: np.ndarray

    @classmethod
    def of(cls, when: Any, series: np.ndarray | None, y: np.ndarray) -> History:
        days = days_of(when)
        return cls(days, np.zeros(len(days), int) if series is None else np.asarray(series, int), y)

    def then(self, later: History) -> History:
        """With later rows; where both have a day of a series, the later rows count."""
        old = ~np.isin(_keys(self.series, self.days), _keys(later.series, later.days))
        return History(*(np.concatenate([a[old], b]) for a, b in zip(self, later, strict=True)))

    def since(self, day: int) -> History:
        return History(*(a[self.days >= day] for a in self))


def days_of(when: Any) -> np.ndarray:
    """Days since 1970 of a column of dates."""
    return np.asarray(when, "datetime64[D]").astype(int)


def _keys(series: np.ndarray, days: np.ndarray) -> np.ndarray:
    return np.asarray(series, np.int64) * BEYOND + np.clip(days, -(BEYOND // 4), BEYOND // 2) + BEYOND // 4


def sums(history: History, series: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(sum of demand (windows, targets), number of rows) of a series from day ``first`` to ``last``, both included."""
    keys = _keys(history.series, history.days)
    order = np.argsort(keys, kind="stable")
    total = np.concatenate([np.zeros((1, history.y.shape[1])), np.cumsum(history.y[order], axis=0)])
    low = np.searchsorted(keys[order], _keys(series, first), side="left")
    high = np.maximum(low, np.searchsorted(keys[order], _keys(series, last), side="right"))
    return total[high] - total[low], high - low


def over_period(history: History, days: int) -> tuple[np.ndarray, int]:
    """(demand from each row's day on, over that many days; not a number where the series ends before, days without a
    row: nothing was asked for on them)."""
    total, rows = sums(history, history.series, history.days, history.days + days - 1)
    ends = np.full(history.series.max() + 1, -BEYOND)
    np.maximum.at(ends, history.series, history.days)
    whole = history.days + days - 1 <= ends[history.series]
    return np.where(whole[:, None], total, np.nan), int((days - rows[whole]).clip(0).sum())
