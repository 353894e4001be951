"""What later days say of a rule: savings, service, likely demand and wrong forecasts, as numbers for people."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.loss import newsvendor_cost
from bilevelax.applications.newsvendor.shapley import shapley
from bilevelax.sklearn._scored import Outcome, costs_of, levels_of
from bilevelax.sklearn.compare import paired_interval

OURS, PLAIN = "robust", "quantile"  # the rule, and what needs no forecast: the same order every day
BAND = (0.05, 0.95)  # of likely demand
DRAWN = 730  # days of the chart
ERRORS = (0.0, 0.5, 1.0, 2.0)  # standard deviations by which what is known may be wrong
ERROR_ROWS = 1000
DRIVEN, COMPARED = 12, 16  # rows whose orders are explained, past rows that they are compared with


class Evaluated(NamedTuple):
    """A rule and other methods on later days.

    ``methods`` are fitted newsvendors by name, `OURS` and `PLAIN` among them; ``comparison`` is their table on ``X``;
    ``dates`` (rows,) is None where the file has none; ``movable`` are names of columns that may be wrong.
    """

    comparison: Any
    methods: Mapping[str, Any]
    X: np.ndarray
    dates: np.ndarray | None
    products: Sequence[str]
    movable: Sequence[str]
    factors: np.ndarray  # of those columns' deviations; 0 elsewhere
    law: Any = None  # demand given contexts, as `order` tells it; by default that of the method "forest"
    series: np.ndarray | None = None  # name of each row's product, where a row is one

    @property
    def rule(self) -> Any:
        return self.methods[OURS]

    def outcome(self, name: str = OURS) -> Outcome:
        return self.comparison.outcomes[name]

    def days_are_sums(self) -> bool:
        """Several rows of a date are drawn as one point; the quantiles of a sum are not known there."""
        return self.dates is not None and not self.rows_are_days()

    def rows_are_days(self) -> bool:
        """One row for each date, so that a row may be called a day."""
        return self.dates is not None and len(np.unique(self.dates.astype("datetime64[D]"))) == len(self.dates)


class Saving(NamedTuple):
    """What the rule pays less than another method over all rows; negative where it pays more."""

    name: str
    cost: float
    other: float
    low: float  # 95 % interval of the saving
    high: float
    over: float  # units that it leaves over less
    missing: float  # units that it misses less

    @property
    def share(self) -> float:
        return 1 - self.cost / self.other if self.other else 0.0

    @property
    def is_sure(self) -> bool:
        return self.low > 0 or self.high < 0


def saving_against(evaluated: Evaluated, name: str) -> Saving:
    ours, other = evaluated.outcome(), evaluated.outcome(name)
    low, high = (len(ours.costs) * bound for bound in paired_interval(other.costs, ours.costs))
    units = [
        other_units - our_units for other_units, our_units in zip(wrong_units(other), wrong_units(ours), strict=True)
    ]
    return Saving(name, float(ours.costs.sum()), float(other.costs.sum()), low, high, *units)


def wrong_units(outcome: Outcome) -> tuple[float, float]:
    """(units left over, units missing)"""
    over = outcome.orders - outcome.demand
    return float(over.clip(0).sum()), float((-over).clip(0).sum())


def best_other(evaluated: Evaluated) -> str:
    """The cheapest method beside the rule and the plain one; the plain one if there is no other."""
    costs = evaluated.comparison.table["mean_cost"].drop([OURS])
    return str(costs.drop([PLAIN]).idxmin()) if len(costs) > 1 else PLAIN


def targets(evaluated: Evaluated) -> np.ndarray:
    """Of each row and output: the share of such rows on which the best order covers demand."""
    return levels_of(evaluated.rule, evaluated.X, evaluated.outcome().orders.shape[1])


class Product(NamedTuple):
    """One product under the rule, over its rows."""

    name: str
    rows: int
    demand: float  # of a row
    order: float
    cost: float
    plain: float  # cost with the plain method
    target: float
    service: float
    filled: float


def by_product(evaluated: Evaluated) -> list[Product]:
    """Dearest first: all rows of an output, or in a long table the rows of each product."""
    ours, demand = evaluated.outcome(), evaluated.outcome().demand
    prices = costs_of(evaluated.rule, evaluated.X, demand.shape[1])
    paid, plain = (newsvendor_cost(evaluated.outcome(name).orders, demand, *prices) for name in (OURS, PLAIN))
    met, levels = np.minimum(ours.orders, demand), targets(evaluated)
    made = []
    for name, rows, j in parts_of(evaluated):
        mean = lambda a, at=(rows, j): float(a[at].mean())
        filled = mean(met) / max(mean(demand), 1e-300)
        sums = mean(demand), mean(ours.orders), mean(paid), mean(plain), mean(levels), mean(ours.orders >= demand)
        made.append(Product(name, len(rows), *sums, filled))
    return sorted(made, key=lambda row: -row.cost * row.rows)


def parts_of(evaluated: Evaluated) -> list[tuple[str, np.ndarray, int]]:
    """(product, its rows, its output)"""
    if evaluated.series is None:
        return [(name, np.arange(len(evaluated.X)), j) for j, name in enumerate(evaluated.products)]
    names, at = np.unique(evaluated.series, return_inverse=True)
    order = np.argsort(at, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(at))[:-1])
    return [(str(name), own, 0) for name, own in zip(names, rows, strict=True)]


class Likely(NamedTuple):
    """Low and high quantile of demand (rows, products and, after them, their sum), and how often demand lay between."""

    low: np.ndarray
    high: np.ndarray
    held: float  # of products


def likely_demand(evaluated: Evaluated, rows: np.ndarray) -> Likely | None:
    """By weights on past rows, which know how products go together; None without a law."""
    conditional = evaluated.law or getattr(evaluated.methods.get("forest"), "conditional_", None)
    if conditional is None:
        return None
    with_sum = copy.copy(conditional)
    with_sum.y_ = np.column_stack([conditional.y_, conditional.y_.sum(axis=1)])
    low, high = np.moveaxis(with_sum.quantiles(evaluated.X[rows], np.array(BAND)), 1, 0)
    demand = evaluated.outcome().demand[rows]
    held = (low[:, :-1] <= demand) & (demand <= high[:, :-1])
    return Likely(low, high, float(held.mean()))


def drawn_rows(evaluated: Evaluated) -> np.ndarray:
    """The last rows in the order of time."""
    order = np.arange(len(evaluated.X)) if evaluated.dates is None else np.argsort(evaluated.dates, kind="stable")
    return order[-DRAWN:]


def wrong_forecasts(evaluated: Evaluated) -> dict[str, list[float]]:
    """Mean cost of each method where what is known is off by so many standard deviations, `ERRORS`."""
    from bilevelax.sklearn.shift import shifted

    some = np.unique(np.linspace(0, len(evaluated.X) - 1, ERROR_ROWS).astype(int))
    X, demand = evaluated.X[some], evaluated.outcome().demand[some]
    seen = [shifted(X, "noise", size=size, columns=evaluated.factors) for size in ERRORS]
    return {
        name: [float(Outcome.of(_unnamed(method), each, demand).costs.mean()) for each in seen]
        for name, method in evaluated.methods.items()
    }


def driver_sizes(evaluated: Evaluated, groups: Mapping[str, list[int]]) -> dict[str, float]:
    """Mean size of the part of each group of columns in the order of all products, largest first.

    Parts are Shapley's, against the mean order of past rows; they add up to the distance to it on every row.
    """
    past = getattr(evaluated.methods.get("forest"), "conditional_", None)
    if past is None or len(groups) < 2:
        return {}
    rule, spread = _unnamed(evaluated.rule), lambda a, n: a[np.unique(np.linspace(0, len(a) - 1, n).astype(int))]
    total = lambda X: np.asarray(rule.predict(X)).reshape(len(X), -1).sum(axis=1, keepdims=True)
    rows, compared = spread(evaluated.X, DRIVEN), spread(past.X_, COMPARED)
    parts = np.stack([shapley(total, row, compared, list(groups.values()))[:, 0] for row in rows])
    sizes = dict(zip(groups, np.abs(parts).mean(axis=0).tolist(), strict=True))
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _unnamed(method: Any) -> Any:
    """The same newsvendor for arrays: one that was fitted on a table would warn of names that are not there."""
    if not hasattr(method, "feature_names_in_"):
        return method
    method = copy.copy(method)
    del method.feature_names_in_
    return method
