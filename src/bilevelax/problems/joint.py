"""Problems of which only pairs (xi, eta) are known: a table of rows, and no draw of eta given xi."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.core.problem import Eta, Key, Loss, Problem, PyTree, X, Xi, Y
from bilevelax.problems.stored import Stored

MOST_BYTES = 2**32  # of the columns of a store, which are read into memory


class Rows(NamedTuple):
    """The data leaves of a problem of pairs: row i is one draw of (xi, eta)."""

    contexts: PyTree
    outcomes: PyTree


class OnlyPairs:
    """The conditional sampler of a problem of pairs: it refuses, and knows the one outcome of each row."""

    def __call__(self, key: Key, xi: Xi, data: PyTree) -> Eta:
        raise ValueError(
            "This problem knows pairs (xi, eta) only and cannot draw eta given xi. Three ways on: reduced(problem, "
            "basis), the estimator amortised(), or sklearn.with_conditional(problem, 'forest')."
        )

    def of_row(self, key: Key, xi: Stored, data: Rows) -> Eta:
        """The outcome that this row came with."""
        return jax.tree.map(lambda a: a[xi.row], data.outcomes)


ONLY_PAIRS = OnlyPairs()


def from_joint(
    f: Callable[[X, Y, Eta, Xi], jax.Array],
    g: Callable[[X, Y, Eta, Xi], jax.Array],
    rows: Any,
    *,
    init_y: Callable[[X, Xi], Y],
    context: str | Sequence[str] | None = None,
    outcome: str | Sequence[str] | None = None,
    mu_g: float | None = None,
    L_g1: float | None = None,
) -> Problem:
    """A problem whose rows are joint draws of (xi, eta), one outcome for each context.

    Nothing here says what else could have happened in the context of a row. `reduced` and `amortised` need no more
    than this; `with_conditional` estimates the rest. Everything that needs draws of eta given xi refuses the problem.

    Args:
        f, g: losses as in `Problem`; xi and eta are the two parts of a row.
        rows: a pair (contexts, outcomes) of pytrees of arrays with one entry a row; or a table with columns, such as
            one of pandas or a `datasets.ClientStore` (all rows of all clients), with ``context`` and ``outcome``. The
            named columns of a store are read into memory, at most 4.3 GB.
        init_y: as in `Problem`; `reduced` adds its functions to it.
        context, outcome: names of a table's columns. One name gives a number a row, several a vector.
        mu_g, L_g1: as in `Problem`.
    """
    contexts, outcomes = _parts(rows, context, outcome)
    n = _count(contexts, outcomes)

    def context_at(i: Any, data: Rows) -> Stored:
        return Stored(jnp.asarray(i, jnp.int32), jax.tree.map(lambda a: a[i], data.contexts))

    def of_value(loss: Loss) -> Loss:
        return lambda x, y, eta, xi: loss(x, y, eta, xi.value)

    return Problem(
        f=of_value(f),
        g=of_value(g),
        sample_context=lambda key, data: context_at(random.randint(key, (), 0, len(_leaf(data))), data),
        sample_conditional=ONLY_PAIRS,
        init_y=lambda x, xi: init_y(x, xi.value),
        data=Rows(contexts, outcomes),
        mu_g=mu_g,
        L_g1=L_g1,
        n_contexts=n,
        context_at=context_at,
    )


def _leaf(data: Rows) -> Any:
    return jax.tree.leaves(data.contexts)[0]


def some_rows(problem: Problem, rows: np.ndarray) -> Problem:
    """The same problem of pairs on some of its rows."""
    kept = jax.tree.map(lambda a: a[rows], problem.data)
    return problem.replace(data=kept, n_contexts=len(rows))


def is_joint(problem: Problem) -> bool:
    """Whether only pairs are known."""
    return problem.sample_conditional is ONLY_PAIRS


class Pair(NamedTuple):
    """A joint draw; ``phi`` is what is known of the context besides, e.g. a basis there."""

    xi: Xi
    eta: Eta
    phi: Any = ()


def draw_pair(key: Key, problem: Problem) -> Pair:
    """(xi, eta) from their joint distribution: a row of a problem of pairs, else a context and one draw given it."""
    key_xi, key_eta = random.split(key)
    xi = problem.context(key_xi)
    return Pair(
        xi, ONLY_PAIRS.of_row(key_eta, xi, problem.data) if is_joint(problem) else problem.conditional(key_eta, xi)
    )


def at_answer(loss: Loss, answer: Callable[[X, PyTree, Pair], Y]) -> Loss:
    """``loss`` on pairs, where the follower chooses the parameters w of ``answer(x, w, pair) -> y``."""
    return lambda x, w, pair, xi: loss(x, answer(x, w, pair), pair.eta, pair.xi)


def _parts(rows: Any, context: Any, outcome: Any) -> tuple[PyTree, PyTree]:
    """Contexts and outcomes as arrays."""
    named = context is not None and outcome is not None
    if hasattr(rows, "get") and hasattr(rows, "draw"):  # a store of clients
        if named:
            _require_room(rows.rows, [*_listed(context), *_listed(outcome)])
        rows = rows.values  # columns on disk, of which only those that are named will be read
    elif not hasattr(rows, "columns"):
        if context is not None or outcome is not None or not isinstance(rows, tuple) or len(rows) != 2:
            raise ValueError(
                "`rows` of from_joint must be a pair (contexts, outcomes), or a table with columns together with "
                f"`context` and `outcome`, their names. Got {type(rows).__name__}."
            )
        contexts, outcomes = (jax.tree.map(_floats, part) for part in rows)
        return contexts, outcomes
    if not named:
        raise ValueError("`context` and `outcome` of from_joint must name columns of the table. Got none.")
    contexts = _columns(rows, context, "context").astype(float)  # a basis sees sizes, and no whole numbers
    return contexts, _columns(rows, outcome, "outcome")


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _columns(table: Any, names: str | Sequence[str], role: str) -> jax.Array:
    there = list(getattr(table, "columns", table))
    for name in _listed(names):
        if name not in there:
            raise ValueError(f"`{role}` of from_joint must name columns of the table, {there}. Got {name!r}.")
    if isinstance(names, str):
        return _floats(np.asarray(table[names]))
    return _floats(np.stack([np.asarray(table[name]) for name in names], axis=1))


def _require_room(rows: int, names: Sequence[str]) -> None:
    """Rows are kept in memory: as many bytes as these columns will take must be allowed."""
    taken = rows * len(names) * jnp.zeros((), float).dtype.itemsize
    if taken > MOST_BYTES:
        every = -(-taken // MOST_BYTES)
        raise ValueError(
            f"`rows` of from_joint are kept in memory, at most {MOST_BYTES / 1e9:.1f} GB. Got a store whose {rows} "
            f"rows of {len(names)} columns take {taken / 1e9:.1f} GB: give every {every}th row as arrays, "
            f"(store.values[...][::{every}], ...), or fewer columns."
        )


def _floats(value: Any) -> jax.Array:
    try:
        array = np.asarray(value)
        return jnp.asarray(array if np.issubdtype(array.dtype, np.integer) else array.astype(float))
    except (TypeError, ValueError):
        raise ValueError(
            f"`rows` of from_joint must hold numbers. Got a column of {np.asarray(value).dtype}; encode it first, "
            "e.g. with pandas.get_dummies."
        ) from None


def _count(contexts: PyTree, outcomes: PyTree) -> int:
    """The number of rows, if every array has as many and all are finite."""
    shapes = [a.shape for a in jax.tree.leaves((contexts, outcomes))]
    n = shapes[0][0] if shapes and shapes[0] else 0
    if n < 1 or any(not shape or shape[0] != n for shape in shapes):
        raise ValueError(f"`rows` of from_joint must be arrays with one entry for each row. Got shapes {shapes}.")
    for name, part in (("contexts", contexts), ("outcomes", outcomes)):
        for leaf in map(np.asarray, jax.tree.leaves(part)):
            bad = ~np.isfinite(leaf.reshape(n, -1)).all(axis=1)
            if bad.any():
                raise ValueError(
                    f"`rows` of from_joint must be finite. Got {leaf[np.argmax(bad)]} in the {name} of row "
                    f"{np.argmax(bad)} ({bad.sum()} such rows); drop or fill them."
                )
    return int(n)
