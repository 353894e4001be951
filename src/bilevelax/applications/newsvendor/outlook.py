"""How sure an order is: the range of demand at a context, and the chance that the order covers it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.weights import Conditional

LEVELS = (0.05, 0.5, 0.95)


class Outlook(NamedTuple):
    """Of each row and product, (rows, outputs)."""

    low: np.ndarray  # quantiles of demand at `LEVELS`
    middle: np.ndarray
    high: np.ndarray
    chance: np.ndarray  # P(demand <= order | context)


def outlook(conditional: Conditional, X: np.ndarray, orders: np.ndarray) -> Outlook:
    """What the weighted past demands say of orders (rows, outputs)."""
    low, middle, high = np.moveaxis(conditional.quantiles(X, np.array(LEVELS)), 1, 0)
    return Outlook(low, middle, high, chance_to_cover(conditional, X, orders))


def chance_to_cover(
    conditional: Conditional, X: np.ndarray, orders: np.ndarray, own: np.ndarray | None = None
) -> np.ndarray:
    """P(demand <= order | context) = sum of w_i(context) over past rows i with demand <= order."""
    chances, start = np.zeros(np.shape(orders)), 0
    for W in conditional.in_chunks(X, own):
        lines = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
        part = orders[start : start + W.shape[0]]
        for j in range(part.shape[1]):
            covered = conditional.y_[W.indices, j] <= part[lines, j] * (1 + 1e-12)
            chances[start : start + W.shape[0], j] = np.bincount(lines, W.data * covered, W.shape[0])
        start += W.shape[0]
    return np.clip(chances, 0.0, 1.0)


def inside(outlook: Outlook, demand: np.ndarray) -> float:
    """Share of demands within the 90 % range."""
    return float(np.mean((outlook.low <= demand) & (demand <= outlook.high)))


def place_of(conditional: Conditional, X: np.ndarray, y: np.ndarray, own: np.ndarray | None = None) -> np.ndarray:
    """Where demands lie in their laws: P(D < y | context) + P(D = y | context) / 2, uniform if the laws are right."""
    below = chance_to_cover(conditional, X, np.nextafter(y * (1 - 2e-12), -np.inf), own)
    return (below + chance_to_cover(conditional, X, y, own)) / 2
