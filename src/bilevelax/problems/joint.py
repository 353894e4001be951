"""Problems of which only pairs (xi, eta) are known: a table of rows, and no draw of eta given xi."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.core.problem import Eta, Key, Loss, Problem, PyTree, X, Xi, Y
from bilevelax.problems.on_disk import Column, OnDisk, Rows, numbers, on_disk, require_finite
from bilevelax.problems.stored import Stored

MOST_BYTES = 2**32  # of the columns of a store that are read into memory


class OnlyPairs:
    """The conditional sampler of a problem of pairs: it refuses, and knows the one outcome of each row."""

    def __call__(self, key: Key, xi: Xi, data: PyTree) -> Eta:
        raise ValueError(
            "This problem knows pairs (xi, eta) only and cannot draw eta given xi. Three ways on: reduced(problem, "
            "basis), the estimator amortised(), or sklearn.with_conditional(problem, 'forest')."
        )

    def of_row(self, key: Key, xi: Stored, data: Rows | OnDisk) -> Eta:
        """The outcome that this row came with."""
        return data.at(xi.row).outcomes


ONLY_PAIRS = OnlyPairs()


def from_joint(
    f: Callable[[X, Y, Eta, Xi], jax.Array],
    g: Callable[[X, Y, Eta, Xi], jax.Array],
    rows: Any,
    *,
    init_y: Callable[[X, Xi], Y],
    context: str | Sequence[str] | None = None,
    outcome: str | Sequence[str] | None = None,
    stream: bool | None = None,
    mu_g: float | None = None,
    L_g1: float | None = None,
) -> Problem:
    """A problem whose rows are joint draws of (xi, eta), one outcome for each context.

    Nothing here says what else could have happened in the context of a row. `reduced` and `amortised` need no more
    than this; `with_conditional` estimates the rest. Everything that needs draws of eta given xi refuses the problem.

    Args:
        f, g: losses as in `Problem`; xi and eta are the two parts of a row.
        rows: a pair (contexts, outcomes) of pytrees of arrays with one entry a row; or a table with columns, such as
            one of pandas or a `datasets.ClientStore` (all rows of all clients), with ``context`` and ``outcome``.
        init_y: as in `Problem`; `reduced` adds its functions to it.
        context, outcome: names of a table's columns. One name gives a number a row, several a vector.
        stream: leave rows where they are, e.g. on disk, and read each when it is drawn: the same draws in bounded
            memory. By default only what would take more than 4.3 GB of a store or of memory-mapped arrays.
        mu_g, L_g1: as in `Problem`.
    """
    columns = _columns_of(rows, context, outcome)
    n = _count(columns)
    stays = _stays_on_disk(rows, columns, n) if stream is None else stream
    data = on_disk(columns, n) if stays else _in_memory(columns)

    def context_at(i: Any, data: Rows | OnDisk) -> Stored:
        return Stored(jnp.asarray(i, jnp.int32), data.at(i).contexts)

    def of_value(loss: Loss) -> Loss:
        return lambda x, y, eta, xi: loss(x, y, eta, xi.value)

    return Problem(
        f=of_value(f),
        g=of_value(g),
        sample_context=lambda key, data: context_at(_row(key, data), data),
        sample_conditional=ONLY_PAIRS,
        init_y=lambda x, xi: init_y(x, xi.value),
        data=data,
        mu_g=mu_g,
        L_g1=L_g1,
        n_contexts=n,
        context_at=context_at,
    )


def _row(key: Key, data: Rows | OnDisk) -> jax.Array:
    return random.randint(key, (), 0, data.many)


def in_memory(problem: Problem) -> Problem:
    """The same problem of pairs, or one on a sample of its rows where they are on disk."""
    rows = problem.data
    return problem if isinstance(rows, Rows) else problem.replace(data=rows.sample, n_contexts=rows.sample.many)


def some_rows(problem: Problem, rows: np.ndarray) -> Problem:
    """The same problem of pairs on some of its rows."""
    return problem.replace(data=problem.data.at(rows), n_contexts=len(rows))


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
    if not is_joint(problem):
        xi = problem.context(key_xi)
        return Pair(xi, problem.conditional(key_eta, xi))
    return pair_at(_row(key_xi, problem.data), problem.data)


def pair_at(row: jax.Array, data: Rows | OnDisk) -> Pair:
    """Row number ``row``, or the rows of these numbers: read once."""
    found = data.at(row)
    return Pair(Stored(jnp.asarray(row, jnp.int32), found.contexts), found.outcomes)


def at_answer(loss: Loss, answer: Callable[[X, PyTree, Pair], Y]) -> Loss:
    """``loss`` on pairs, where the follower chooses the parameters w of ``answer(x, w, pair) -> y``."""
    return lambda x, w, pair, xi: loss(x, answer(x, w, pair), pair.eta, pair.xi)


def _columns_of(rows: Any, context: Any, outcome: Any) -> Rows:
    """Contexts and outcomes as columns, of which nothing is read yet."""
    if hasattr(rows, "get") and hasattr(rows, "draw"):  # a store of clients
        rows = rows.values  # columns on disk, of which only those that are named will be read
    elif not hasattr(rows, "columns"):
        if context is not None or outcome is not None or not isinstance(rows, tuple) or len(rows) != 2:
            raise ValueError(
                "`rows` of from_joint must be a pair (contexts, outcomes), or a table with columns together with "
                f"`context` and `outcome`, their names. Got {type(rows).__name__}."
            )
        return Rows(*(jax.tree.map(lambda a: _column([a]), part) for part in rows))
    if context is None or outcome is None:
        raise ValueError("`context` and `outcome` of from_joint must name columns of the table. Got none.")
    # a basis sees sizes of contexts, and no whole numbers
    return Rows(_named(rows, context, "context", floating=True), _named(rows, outcome, "outcome"))


def _named(table: Any, names: str | Sequence[str], role: str, floating: bool = False) -> Column:
    there, listed = list(getattr(table, "columns", table)), [names] if isinstance(names, str) else list(names)
    for name in listed:
        if name not in there:
            raise ValueError(f"`{role}` of from_joint must name columns of the table, {there}. Got {name!r}.")
    return _column([table[name] for name in listed], not isinstance(names, str), floating)


def _column(arrays: Sequence[Any], stacked: bool = False, floating: bool = False) -> Column:
    """Arrays of numbers; what lies on disk stays there."""
    plain = tuple(map(np.asanyarray, arrays))
    try:
        for each in plain:
            numbers(each[:1] if each.ndim and each.dtype != object else each)
    except (TypeError, ValueError):
        raise ValueError(
            f"`rows` of from_joint must hold numbers. Got a column of {each.dtype}; encode it first, e.g. with "
            "pandas.get_dummies."
        ) from None
    return Column(plain, stacked, floating)


def _stays_on_disk(rows: Any, columns: Rows, n: int) -> bool:
    """Whether they come from a disk and would take too much memory."""
    from_disk = hasattr(rows, "draw") or all(isinstance(a, np.memmap) for a in _arrays(columns))
    taken = n * sum(column.row_bytes for column in jax.tree.leaves(tuple(columns)))
    return bool(from_disk and taken > MOST_BYTES)


def _in_memory(columns: Rows) -> Rows:
    rows = Rows(*jax.tree.map(lambda column: jnp.asarray(column[:]), tuple(columns)))
    require_finite(rows)
    return rows


def _arrays(columns: Rows) -> list[Any]:
    return [a for column in jax.tree.leaves(tuple(columns)) for a in column.arrays]


def _count(columns: Rows) -> int:
    """The number of rows, if every array has as many."""
    shapes = [a.shape for a in _arrays(columns)]
    n = shapes[0][0] if shapes and shapes[0] else 0
    if n < 1 or any(not shape or shape[0] != n for shape in shapes):
        raise ValueError(f"`rows` of from_joint must be arrays with one entry for each row. Got shapes {shapes}.")
    return int(n)
