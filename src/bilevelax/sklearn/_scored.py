"""How every newsvendor here is scored: by the true cost of its orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.loss import cost_array, newsvendor_cost


@dataclass(frozen=True)
class CostColumn:
    """A cost that differs from row to row, and is known beforehand: the column of the contexts with this number."""

    number: int


def newsvendor_in(estimator: Any) -> Any:
    """The estimator that knows the costs, inside a pipeline or a search."""
    inner = estimator
    while not hasattr(inner, "holding_cost"):
        if hasattr(inner, "steps"):
            inner = inner[-1]
        elif hasattr(inner, "best_estimator_") or hasattr(inner, "estimator"):
            inner = getattr(inner, "best_estimator_", None) or inner.estimator
        else:
            raise ValueError(
                f"A newsvendor must know `holding_cost` and `backlog_cost`. Got {type(inner).__name__}; "
                "take one of bilevelax.sklearn."
            )
    return inner


def costs_of(newsvendor: Any, X: Any, outputs: int, holding: Any = None, backlog: Any = None) -> list[np.ndarray]:
    """[h, b], each (rows, outputs), at contexts X: the given ones, else those that the newsvendor was made with."""
    owner = type(newsvendor).__name__
    given = {"holding_cost": holding, "backlog_cost": backlog}
    made = {name: getattr(newsvendor, name) if value is None else value for name, value in given.items()}
    return [cost_array(column_of(value, X, name, owner), name, owner, len(X), outputs) for name, value in made.items()]


def levels_of(newsvendor: Any, X: Any, outputs: int) -> np.ndarray:
    """b / (h + b) of each row and output: the share of such rows on which the best order covers demand."""
    holding, backlog = costs_of(newsvendor, X, outputs)
    return backlog / (holding + backlog)


def column_of(cost: Any, X: Any, name: str, owner: str) -> Any:
    """The values of a `CostColumn` at contexts X (rows, 1); other costs as they are."""
    if not isinstance(cost, CostColumn):
        return cost
    X = np.asarray(X)
    if not 0 <= cost.number < X.shape[1]:
        raise ValueError(f"`{name}` of {owner} is column {cost.number} of X, which has {X.shape[1]} columns.")
    return X[:, [cost.number]]


class Outcome(NamedTuple):
    """Orders and demands (rows, outputs) of the test rows, with their costs per row."""

    orders: np.ndarray
    demand: np.ndarray
    costs: np.ndarray

    @classmethod
    def of(cls, estimator: Any, X: Any, y: Any, holding: Any = None, backlog: Any = None) -> Outcome:
        """Orders of a fitted estimator for X, and what they cost at the demand y."""
        orders = np.asarray(estimator.predict(X), float)
        orders = orders.reshape(len(orders), -1)
        demand = np.asarray(y, float).reshape(len(orders), -1)
        return cls.at(orders, demand, X, newsvendor_in(estimator), holding, backlog)

    @classmethod
    def at(cls, orders: Any, demand: Any, X: Any, newsvendor: Any, holding: Any = None, backlog: Any = None) -> Outcome:
        """Given orders (rows, outputs) at contexts X, and what they cost a newsvendor at the demand."""
        prices = costs_of(newsvendor, X, orders.shape[1], holding, backlog)
        return cls(orders, demand, newsvendor_cost(orders, demand, *prices).sum(axis=1))

    @staticmethod
    def joined(parts: list[Outcome]) -> Outcome:
        return Outcome(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class ScoredByCost:
    """``decision_cost`` and ``score`` of an estimator with ``holding_cost`` and ``backlog_cost``."""

    holding_cost: Any
    backlog_cost: Any

    def decision_cost(
        self, X: Any, y: Any, per_row: bool = False, holding_cost: Any = None, backlog_cost: Any = None
    ) -> Any:
        """True (unsmoothed) cost of the orders for X when demand is y, added up over the outputs.

        Args:
            X, y: contexts and what was demanded.
            per_row: one cost for each row instead of their mean.
            holding_cost, backlog_cost: per row (and output), instead of those of the constructor.
        """
        costs = Outcome.of(self, X, y, holding_cost, backlog_cost).costs
        return costs if per_row else float(costs.mean())

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean true cost: larger is better."""
        return -float(np.average(self.decision_cost(X, y, per_row=True), weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # score is minus a cost, never near 1
        return tags
