"""Problems from stored contexts and outcomes: finite P_xi, empirical P_{eta|xi}."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.core.problem import Key, Problem, PyTree, X, Xi, Y


class Stored(NamedTuple):
    """A context of `from_arrays`: its row and its value; f, g and init_y get the value only."""

    row: jax.Array
    value: PyTree


class StoredData(NamedTuple):
    """The data leaves of such a problem."""

    contexts: PyTree  # leading axis: contexts
    outcomes: PyTree  # leading axes: contexts, outcomes (padded)
    counts: jax.Array  # outcomes of each context


def from_arrays(
    f: Callable[[X, Y, Any, Xi], jax.Array],
    g: Callable[[X, Y, Any, Xi], jax.Array],
    contexts: PyTree,
    outcomes: PyTree | Sequence[Any],
    *,
    init_y: Callable[[X, Xi], Y],
    mu_g: float | None = None,
    L_g1: float | None = None,
    constraint: Any = None,
) -> Problem:
    """A problem whose contexts are the rows of ``contexts``, all equally likely.

    ``problem.nth_context(i)`` is row i as the samplers return it, e.g. for `respond`.

    Args:
        f, g: losses as in `Problem`; xi is a row of ``contexts``, eta one of its outcomes.
        contexts: pytree of arrays with M rows.
        outcomes: pytree of arrays of shape (M, m, ...), or a list of M arrays of m_i rows each
            where the contexts have different numbers of outcomes.
        init_y, mu_g, L_g1, constraint: as in `Problem`.
    """
    contexts = jax.tree.map(jnp.asarray, contexts)
    shapes = [a.shape for a in jax.tree.leaves(contexts)]
    M = shapes[0][0] if shapes and shapes[0] else 0
    if M < 1 or any(not shape or shape[0] != M for shape in shapes):
        raise ValueError(f"`contexts` of from_arrays must be arrays with one row per context. Got shapes {shapes}.")
    outcomes, counts = _padded(outcomes, M)

    def context_at(i: Any, data: StoredData) -> Stored:
        return Stored(jnp.asarray(i, jnp.int32), jax.tree.map(lambda a: a[i], data.contexts))

    def sample_context(key: Key, data: StoredData) -> Stored:
        return context_at(random.randint(key, (), 0, M), data)

    def sample_conditional(key: Key, xi: Stored, data: StoredData) -> Any:
        j = random.randint(key, (), 0, data.counts[xi.row])
        return jax.tree.map(lambda a: a[xi.row, j], data.outcomes)

    def support(xi: Stored, data: StoredData) -> tuple[Any, jax.Array]:
        etas = jax.tree.map(lambda a: a[xi.row], data.outcomes)
        count = data.counts[xi.row]
        there = jnp.arange(jax.tree.leaves(etas)[0].shape[0], dtype=jnp.int32) < count
        return etas, jnp.where(there, 1 / count.astype(float), 0.0)

    return Problem(
        f=lambda x, y, eta, xi: f(x, y, eta, xi.value),
        g=lambda x, y, eta, xi: g(x, y, eta, xi.value),
        sample_context=sample_context,
        sample_conditional=sample_conditional,
        init_y=lambda x, xi: init_y(x, xi.value),
        data=StoredData(contexts, outcomes, counts),
        mu_g=mu_g,
        L_g1=L_g1,
        constraint=constraint and constraint.seeing(lambda xi: xi.value),
        n_contexts=M,
        context_at=context_at,
        support=support,
    )


def _padded(outcomes: Any, M: int) -> tuple[PyTree, jax.Array]:
    """Stacked outcomes and how many of them each context has."""
    if isinstance(outcomes, list):
        lengths = [len(rows) for rows in outcomes]
        if len(outcomes) != M or min(lengths, default=0) < 1:
            raise ValueError(
                f"`outcomes` of from_arrays must hold at least one outcome for each of the {M} contexts. "
                f"Got {len(outcomes)} entries, the shortest with {min(lengths, default=0)} rows."
            )
        longest = max(lengths)
        padded = [
            np.concatenate([rows, np.repeat(rows[-1:], longest - len(rows), 0)]) for rows in map(np.asarray, outcomes)
        ]
        return jnp.asarray(np.stack(padded)), jnp.asarray(lengths, jnp.int32)
    outcomes = jax.tree.map(jnp.asarray, outcomes)
    shapes = [a.shape for a in jax.tree.leaves(outcomes)]
    m = shapes[0][1] if shapes and len(shapes[0]) > 1 else 0
    if m < 1 or any(shape[:2] != (M, m) for shape in shapes):
        raise ValueError(
            f"`outcomes` of from_arrays must have shape (M, m, ...) with M = {M} contexts. Got shapes {shapes}."
        )
    return outcomes, jnp.full(M, m, jnp.int32)
