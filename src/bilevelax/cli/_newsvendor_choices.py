"""Columns that `fit` takes where they pay: the years (``--dates auto``), and past demand (``--lags auto``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from bilevelax.cli._newsvendor_past import Asked, Past

ORIGINS, CLEARLY = 3, 0.98  # rolling origins that choose, and the share of the cost that columns have to reach
FEWEST = 20  # rows of an origin


def with_columns_chosen(past: Past, costs: dict[str, Any], asked: Asked) -> Past:
    """The columns that the options leave to later days."""
    past = with_trend_chosen(past, costs) if asked.dates == "auto" else past
    return with_lags_chosen(past, costs) if asked.lags == "auto" else past


def with_trend_chosen(past: Past, costs: dict[str, Any]) -> Past:
    """The years stay a column where they pay; beyond the last day of training they stay as they were there."""
    past, used = chosen(past, costs, "trend", ["years"] if past.schema.date else [])
    if past.schema.calendar and not used:
        past.schema.calendar["trend"] = False
    return past


def with_lags_chosen(past: Past, costs: dict[str, Any]) -> Past:
    """Past demand stays where it pays, and where the file's days reach back far enough."""
    from bilevelax.tables import lags

    past, used = chosen(past, costs, "past demand", lags.names(past.schema.lags, past.schema.targets))
    if not used:
        past.schema.lags = None
    return past


def chosen(past: Past, costs: dict[str, Any], what: str, columns: list[str]) -> tuple[Past, bool]:
    """(without these columns unless they pay, whether they do)."""
    ratios = cost_ratios(past, costs, columns)
    if ratios.mean() < CLEARLY and (ratios < 1).sum() >= 2:
        told = f"{what}: used, costs on later rows fall to {ratios.mean():.0%}"
        return past._replace(notes=[*past.notes, told]), True
    told = f"{what}: not used, costs on later rows do not fall clearly"
    return past._replace(X=past.X.drop(columns=columns), notes=[*past.notes, told]), False


def cost_ratios(past: Past, costs: dict[str, Any], columns: list[str]) -> np.ndarray:
    """What a forest with the columns pays on later rows over what it pays without, at each origin."""
    import numpy as np
    from sklearn.model_selection import TimeSeriesSplit

    from bilevelax.sklearn import WeightedSampleAverage
    from bilevelax.sklearn.conditional import Forest

    if not columns or len(past.y) < FEWEST * ORIGINS:
        return np.full(ORIGINS, np.inf)
    X, plain = past.X.to_numpy(float), past.X.drop(columns=columns).to_numpy(float)
    paid = np.zeros((2, ORIGINS))
    for k, (train, held) in enumerate(TimeSeriesSplit(ORIGINS).split(X)):
        for i, contexts in enumerate((X, plain)):
            forest = WeightedSampleAverage(**costs, conditional=Forest(trees=50), random_state=0)
            paid[i, k] = forest.fit(contexts[train], past.y[train]).decision_cost(contexts[held], past.y[held])
    return paid[0] / np.maximum(paid[1], 1e-300)
