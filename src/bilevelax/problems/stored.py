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


def context_at(i: Any, data: Any) -> Stored:
    """Row i of the data's contexts."""
    return Stored(jnp.asarray(i, jnp.int32), jax.tree.map(lambda a: a[i], data.contexts))


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
        contexts: pytree of arrays with M rows, or a table of pandas: xi is then a dict by the names of its columns.
        outcomes: pytree of arrays of shape (M, m, ...); or a list of M pytrees of arrays of m_i rows each, where the
            contexts have different numbers of outcomes; a table of pandas for each gives a dict by names, as in
            ``[rows for _, rows in table.groupby("shop")]``.
        init_y, mu_g, L_g1, constraint: as in `Problem`.
    """
    contexts, M = rows_of_contexts(contexts, "from_arrays")
    outcomes, counts = padded(outcomes, M)

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
        constraint=constraint and constraint.seeing(xi=lambda xi: xi.value),
        n_contexts=M,
        context_at=context_at,
        support=support,
    )


def rows_of_contexts(contexts: PyTree, owner: str) -> tuple[PyTree, int]:
    """Contexts as arrays, and how many there are."""
    contexts = jax.tree.map(jnp.asarray, numbers_in(as_columns(contexts), f"`contexts` of {owner}"))
    shapes = [a.shape for a in jax.tree.leaves(contexts)]
    M = shapes[0][0] if shapes and shapes[0] else 0
    if M < 1 or any(not shape or shape[0] != M for shape in shapes):
        raise ValueError(f"`contexts` of {owner} must be arrays with one row per context. Got shapes {shapes}.")
    return contexts, M


def padded(outcomes: Any, M: int, name: str = "outcomes", owner: str = "from_arrays") -> tuple[PyTree, jax.Array]:
    """Stacked outcomes and how many of them each context has."""
    if isinstance(outcomes, list):
        return _padded_groups([as_columns(rows) for rows in outcomes], M, f"`{name}` of {owner}")
    if hasattr(outcomes, "groups"):
        raise ValueError(
            f"`{name}` of {owner} must be a list with the rows of each context. Got a pandas groupby; give "
            "[rows for _, rows in groups], in the order of `contexts`."
        )
    outcomes = jax.tree.map(jnp.asarray, numbers_in(outcomes, f"`{name}` of {owner}"))
    shapes = [a.shape for a in jax.tree.leaves(outcomes)]
    m = shapes[0][1] if shapes and len(shapes[0]) > 1 else 0
    if m < 1 or any(shape[:2] != (M, m) for shape in shapes):
        raise ValueError(f"`{name}` of {owner} must have shape (M, m, ...) with M = {M} contexts. Got shapes {shapes}.")
    return outcomes, jnp.full(M, m, jnp.int32)


def _padded_groups(groups: list[PyTree], M: int, what: str) -> tuple[PyTree, jax.Array]:
    """One tree of rows for each context, padded with copies of its last row."""
    groups = [numbers_in(rows, what) for rows in groups]
    lengths = [_rows(rows, what, i) for i, rows in enumerate(groups)]
    if len(groups) != M or min(lengths, default=0) < 1:
        raise ValueError(
            f"{what} must hold at least one outcome for each of the {M} contexts. Got {len(groups)} entries, the "
            f"shortest with {min(lengths, default=0)} rows."
        )
    structures: list[Any] = [jax.tree.structure(rows) for rows in groups]
    odd = next((i for i in range(M) if structures[i] != structures[0]), None)
    if odd is not None:
        raise ValueError(
            f"{what} must have the same parts in every context. Got {structures[odd]} in context {odd} and "
            f"{structures[0]} in context 0."
        )
    fill = lambda a: np.concatenate([a, np.repeat(a[-1:], max(lengths) - len(a), 0)])
    return jax.tree.map(lambda *a: jnp.asarray(np.stack([*map(fill, a)])), *groups), jnp.asarray(lengths, jnp.int32)


def _rows(rows: PyTree, what: str, i: int) -> int:
    """How many rows all arrays of a context have."""
    lengths = {len(a) if a.ndim else 0 for a in jax.tree.leaves(rows)} or {0}
    if len(lengths) > 1:
        raise ValueError(f"{what} must have as many rows in each array. Got {sorted(lengths)} rows in context {i}.")
    return int(lengths.pop())


def numbers_in(tree: PyTree, what: str) -> PyTree:
    """The same tree of arrays that JAX can hold, or one sentence about the first that it cannot."""

    def convert(path: Any, leaf: Any) -> Any:
        try:
            array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        except (TypeError, ValueError) as error:
            kind = f"{type(leaf).__name__} ({error})"
        else:
            if any(jax.dtypes.issubdtype(array.dtype, each) for each in (jax.dtypes.extended, jnp.number, np.bool_)):
                return array
            kind = str(array.dtype)
        part = jax.tree_util.keystr(path)
        raise ValueError(f"{what} must hold numbers. Got {kind}{part and f' in its part {part}'}; encode it first.")

    return jax.tree_util.tree_map_with_path(convert, tree)


def as_columns(table: Any) -> PyTree:
    """A table of pandas as a dict of its columns; anything else as it is."""
    if not hasattr(table, "columns"):
        return table
    found = {name: np.asarray(table[name]) for name in table.columns}
    for name, column in found.items():
        if not np.issubdtype(column.dtype, np.number) and column.dtype != bool:
            raise ValueError(
                f"Column {name!r} of a table given to from_arrays must hold numbers. Got {column.dtype}; encode it "
                "first, e.g. with pandas.get_dummies, or leave it out."
            )
    return found
