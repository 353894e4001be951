"""What a wrong order costs, and the measures made of it."""

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
    over = np.asarray(orders, float) - np.asarray(demand, float)
    return holding * np.maximum(over, 0.0) + backlog * np.maximum(-over, 0.0)
