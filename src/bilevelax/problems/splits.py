"""Problems of train and validation rows: the follower fits one part of a context's rows, the leader pays on another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.core.problem import Key, Problem, PyTree, X, Xi, Y
from bilevelax.problems.stored import Stored, context_at, padded, rows_of_contexts


class Pair(NamedTuple):
    """An outcome of `from_splits`: g reads the one row, f the other."""

    train: PyTree
    validation: PyTree


class SplitData(NamedTuple):
    """The data leaves of such a problem."""

    contexts: PyTree  # leading axis: contexts
    train: PyTree  # leading axes: contexts, rows (padded)
    validation: PyTree
    pairs: Pair  # numbers of the rows that are paired, (contexts, pairs)
    weights: jax.Array  # of the pairs; padding has none


def from_splits(
    f: Callable[[X, Y, Any, Xi], jax.Array],
    g: Callable[[X, Y, Any, Xi], jax.Array],
    contexts: PyTree,
    train: Any,
    validation: Any,
    *,
    init_y: Callable[[X, Xi], Y],
    mu_g: float | None = None,
    L_g1: float | None = None,
    constraint: Any = None,
) -> Problem:
    """A problem whose follower minimises the mean of g over train rows, and whose leader pays f on validation rows.

    Hyper-parameter optimization and meta-learning have this form. The rows of a context are paired such that each row
    of either part has its right weight: `evaluate`, `certify` and ``saa("all")`` are exact on fewer pairs than rows.

    Args:
        f: ``(x, y, row, xi) -> scalar``, with a validation row.
        g: ``(x, y, row, xi) -> scalar``, with a train row.
        contexts: as in `from_arrays`: M rows; one context for one data set.
        train, validation: rows as ``outcomes`` of `from_arrays`; their numbers may differ.
        init_y, mu_g, L_g1, constraint: as in `Problem`.
    """
    contexts, M = rows_of_contexts(contexts, "from_splits")
    parts = [padded(rows, M, name, "from_splits") for name, rows in (("train", train), ("validation", validation))]
    (train, n_train), (validation, n_validation) = parts
    pairs, weights = coupled(np.asarray(n_train), np.asarray(n_validation))

    def pair(j: Any, xi: Stored, data: SplitData) -> Pair:
        take = lambda rows, numbers: jax.tree.map(lambda a: a[xi.row, numbers[xi.row, j]], rows)
        return Pair(take(data.train, data.pairs.train), take(data.validation, data.pairs.validation))

    def sample_conditional(key: Key, xi: Stored, data: SplitData) -> Pair:
        until = jnp.cumsum(data.weights[xi.row])
        j = jnp.searchsorted(until, random.uniform(key, dtype=until.dtype) * until[-1], side="right")
        return pair(j, xi, data)

    return Problem(
        f=lambda x, y, eta, xi: f(x, y, eta.validation, xi.value),
        g=lambda x, y, eta, xi: g(x, y, eta.train, xi.value),
        sample_context=lambda key, data: context_at(random.randint(key, (), 0, M), data),
        sample_conditional=sample_conditional,
        init_y=lambda x, xi: init_y(x, xi.value),
        data=SplitData(contexts, train, validation, pairs, weights),
        mu_g=mu_g,
        L_g1=L_g1,
        constraint=constraint and constraint.seeing(xi=lambda xi: xi.value),
        n_contexts=M,
        context_at=context_at,
        support=lambda xi, data: (pair(slice(None), xi, data), data.weights[xi.row]),
    )


def coupled(first: np.ndarray, second: np.ndarray) -> tuple[Pair, jax.Array]:
    """Pairs of m and n rows in order, at most m + n - 1, whose weights give every row 1/m and 1/n; of each context."""
    pairs, weights = [], []
    for m, n in zip(first.tolist(), second.tolist(), strict=True):
        edges = np.union1d(np.arange(m + 1) * n, np.arange(n + 1) * m)
        pairs.append(Pair(edges[:-1] // n, edges[:-1] // m))
        weights.append(np.diff(edges) / (m * n))
    most = max(map(len, weights))
    fill = lambda *rows: np.stack([np.pad(row, (0, most - len(row))) for row in rows])
    numbers = jax.tree.map(lambda *rows: jnp.asarray(fill(*rows), jnp.int32), *pairs)
    return numbers, jnp.asarray(fill(*weights), float)
