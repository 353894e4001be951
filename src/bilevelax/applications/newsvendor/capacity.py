r"""Many products, one capacity: the best split of a day by one price.

.. math::
    \min_q \sum_j E\, l_j(q_j, D_j) \quad \text{subject to} \quad \sum_j s_j q_j \le C, \; q \ge 0,
    \qquad q_j(\mu) = F_j^{-1}\Bigl(\frac{b_j - \mu s_j}{b_j + h_j}\Bigr)

for the price mu >= 0 of room at which the orders fit: the same price for all products of the day. A unit of product j
takes the room s_j, or costs that much of a budget. A rule whose order differs
from the quantile keeps its distance to it, so that a capacity which does not bind changes nothing.
"""

from __future__ import annotations

import numpy as np

HALVINGS = 60  # of the interval of prices


def split(
    orders: np.ndarray,
    atoms: np.ndarray,
    holding: np.ndarray,
    backlog: np.ndarray,
    group: np.ndarray,
    capacity: np.ndarray,
    least: float = 0.0,
    size: np.ndarray | None = None,
) -> np.ndarray:
    """Orders that fit into the capacity of their group.

    Args:
        orders: (n,), without a capacity, >= 0.
        atoms: (n, K), equally likely demands of each, ascending.
        holding, backlog: (n,), costs of a unit.
        group: (n,), the number of the day that each belongs to, from 0.
        capacity: (groups,).
        least: of every order; so much of each fits, and no order is below it.
        size: (n,), room that a unit takes; by default 1.
    """
    if not len(orders):
        return orders
    size = np.ones(len(orders)) if size is None else size
    used = lambda q: np.bincount(group, size * q, len(capacity))
    tight = used(orders) > capacity
    low = np.zeros(len(capacity))  # orders at this price do not fit, those at `high` do
    high = np.full(len(capacity), (backlog / size).max())
    apart = orders - _quantile(atoms, backlog / (backlog + holding))

    def at(price: np.ndarray) -> np.ndarray:
        mu = price[group] * size
        wanted = _quantile(atoms, (backlog - mu) / (backlog + holding)) + apart
        return np.where(mu >= backlog, least, np.clip(wanted, least, orders))

    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = used(at(middle)) <= capacity
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    more, less = at(low), at(high)
    most, fewest = used(more), used(less)
    share = np.clip(
        (capacity - fewest) / np.maximum(most - fewest, 1e-300), 0, 1
    )  # between them costs are straight lines
    return np.where(tight[group], less + share[group] * (more - less), orders)


def _quantile(atoms: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The smallest atom whose distribution function reaches the level."""
    k = atoms.shape[1]
    at = np.clip(np.ceil(level * k - 1e-9).astype(int) - 1, 0, k - 1)
    return np.take_along_axis(atoms, at[:, None], axis=1)[:, 0]
