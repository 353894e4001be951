r"""Why this order: its distance to the mean order of past days, divided among the columns (Shapley 1953).

.. math::
    \phi_g = \sum_{S \not\ni g} \frac{|S|! \, (G - |S| - 1)!}{G!} \, (v(S \cup g) - v(S)), \qquad
    v(S) = \mathrm{mean}_z \, \pi(\text{columns of } S \text{ from } \xi, \text{ all others from the past day } z)

The parts add up to order - mean order. All 2^G sets are asked where G is at most 10, else random orders of the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np

MOST = 10  # groups for which every set is asked
ORDERS = 64  # random orders of the groups where there are more, each also backwards

Rule = Callable[[np.ndarray], np.ndarray]  # contexts (n, d) -> orders (n, outputs)


def shapley(rule: Rule, x: np.ndarray, past: np.ndarray, groups: list[list[int]], seed: int = 0) -> np.ndarray:
    """The part of each group of columns in the order at x, (groups, outputs).

    Args:
        rule: gives orders.
        x: (d,), a context.
        past: (days, d), contexts to compare with.
        groups: columns that count as one.
        seed: of the random orders, where there are more than 10 groups.
    """
    count = len(groups)
    if count <= MOST:
        sets = (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1
        values = _values(rule, x, past, groups, sets)
        return np.stack([_exact(values, sets, g) for g in range(count)])
    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(count) for _ in range(ORDERS)])
    orders = np.concatenate([orders, orders[:, ::-1]])
    place = np.argsort(orders, axis=1)  # of each group
    sets = place[:, None, :] < np.arange(count + 1)[None, :, None]  # the first k of each order
    values = _values(rule, x, past, groups, sets.reshape(-1, count)).reshape(len(orders), count + 1, -1)
    gains = np.diff(values, axis=1)
    return np.stack([gains[np.arange(len(orders)), place[:, g]].mean(axis=0) for g in range(count)])


def _values(rule: Rule, x: np.ndarray, past: np.ndarray, groups: list[list[int]], sets: np.ndarray) -> np.ndarray:
    """v of each set, (sets, outputs)."""
    own = np.zeros((len(sets), len(x)), bool)
    for g, columns in enumerate(groups):
        own[:, columns] = sets[:, [g]]
    mixed = np.where(own[:, None, :], x, past[None, :, :])
    orders = rule(mixed.reshape(-1, len(x)))
    return orders.reshape(len(sets), len(past), -1).mean(axis=1)


def _exact(values: np.ndarray, sets: np.ndarray, g: int) -> np.ndarray:
    count = sets.shape[1]
    without = np.flatnonzero(~sets[:, g])
    weights = np.array([1 / (count * comb(count - 1, int(size))) for size in sets[without].sum(axis=1)])
    return weights @ (values[without + (1 << g)] - values[without])
