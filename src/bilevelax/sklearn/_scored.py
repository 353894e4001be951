"""How every newsvendor here is scored: by the true cost of its orders."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.loss import cost_array, newsvendor_cost


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


def costs_of(newsvendor: Any, shape: tuple[int, int], holding: Any = None, backlog: Any = None) -> list[np.ndarray]:
    """[h, b], each of that shape (rows, outputs): the given ones, else those that the newsvendor was made with."""
    owner = type(newsvendor).__name__
    given = {"holding_cost": holding, "backlog_cost": backlog}
    return [
        cost_array(getattr(newsvendor, name) if value is None else value, name, owner, *shape)
        for name, value in given.items()
    ]


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
        return cls.at(orders, demand, newsvendor_in(estimator), holding, backlog)

    @classmethod
    def at(cls, orders: Any, demand: Any, newsvendor: Any, holding: Any = None, backlog: Any = None) -> Outcome:
        """Given orders (rows, outputs), and what they cost a newsvendor at the demand."""
        prices = costs_of(newsvendor, orders.shape, holding, backlog)
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
