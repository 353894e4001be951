"""What a wrong order costs, and how every newsvendor here is scored by it."""

from __future__ import annotations

from typing import Any

import numpy as np


def cost_array(value: Any, name: str, owner: str, rows: int, outputs: int) -> np.ndarray:
    """A cost per row and output from a scalar, one value per output, per row, or both."""
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` of {owner} must be numbers. Got {value!r}.") from None
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError(f"`{name}` of {owner} must be positive. Got {value!r}.")
    if array.shape == (rows,) and (rows != outputs or outputs == 1):
        array = array[:, None]
    try:
        return np.broadcast_to(array, (rows, outputs))
    except ValueError:
        raise ValueError(
            f"`{name}` of {owner} must be one number, one for each of the {outputs} outputs, or one for each of the "
            f"{rows} rows. Got shape {array.shape}."
        ) from None


def newsvendor_cost(orders: np.ndarray, demand: np.ndarray, holding: Any, backlog: Any) -> np.ndarray:
    """h (order - demand)^+ + b (demand - order)^+, entry by entry."""
    if np.shape(orders) != np.shape(demand):  # a column minus a row would be a table of all pairs
        raise ValueError(f"`orders` and `demand` must have one shape. Got {np.shape(orders)} and {np.shape(demand)}.")
    over = np.asarray(orders, float) - np.asarray(demand, float)
    return holding * np.maximum(over, 0.0) + backlog * np.maximum(-over, 0.0)


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
        orders = np.asarray(self.predict(X))  # type: ignore[attr-defined]
        orders = orders.reshape(len(orders), -1)
        demand = np.asarray(y, dtype=float).reshape(len(orders), -1)
        holding, backlog = (
            cost_array(default if given is None else given, name, type(self).__name__, *orders.shape)
            for name, given, default in (
                ("holding_cost", holding_cost, self.holding_cost),
                ("backlog_cost", backlog_cost, self.backlog_cost),
            )
        )
        costs = newsvendor_cost(orders, demand, holding, backlog).sum(axis=1)
        return costs if per_row else float(costs.mean())

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean true cost: larger is better."""
        return -float(np.average(self.decision_cost(X, y, per_row=True), weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # score is minus a cost, never near 1
        return tags
