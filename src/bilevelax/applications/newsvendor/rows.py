r"""The problem behind `RobustNewsvendor`: eq. (10)-(11) in standardised units.

.. math::
    \min_x E_\xi \max_y E_{\eta|\xi} [ l_\beta(\pi_x(\xi + r s \circ y), \eta) - |y|^2 / 2 ],
    \quad r = 1 / \sqrt{2 \lambda}

which is lambda times the squared way in units of the column scales s, with y that way times
sqrt(2 lambda): the lower level has curvature about 1 whatever lambda, and lambda = inf (r = 0)
needs no case of its own. lambda, costs and scales are data: one compiled program serves a
path of penalties and every fold of the same size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.inverse import none
from bilevelax.lower import epoch_sgd
from bilevelax.problem import Key, Problem, PyTree, X, Y

LEAST_ROWS = 64


class Rows(NamedTuple):
    """The data leaves, padded to a bucket of rows."""

    contexts: Any  # (rows, d), standardised
    atoms: Any  # (rows, blocks, outputs, m): equally likely outcomes of m demands each, standardised
    holding: Any  # (rows, outputs), per standardised unit
    backlog: Any
    cdf: Any  # (rows,): cumulative probability of the rows; 1 on padding, which is never drawn
    reach: Any  # (d,): r s, how far a unit of y moves each column


class Context(NamedTuple):
    """A row: what the losses need to know of it."""

    row: jax.Array
    value: jax.Array
    holding: jax.Array
    backlog: jax.Array
    reach: jax.Array


def bucket(n: int, least: int = LEAST_ROWS) -> int:
    """The next of 64, 96, 128, 192, 256, ...: at most half as many rows again, few different sizes."""
    size = least
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def padded(a: np.ndarray, rows: int, fill: float | None = None) -> np.ndarray:
    """``a`` with that many rows; padding repeats the last one."""
    extra = rows - len(a)
    tail = np.repeat(a[-1:], extra, axis=0) if fill is None else np.full((extra, *a.shape[1:]), fill, a.dtype)
    return np.concatenate([a, tail]) if extra else a


def rows_of(
    contexts: np.ndarray,
    atoms: np.ndarray,
    holding: np.ndarray,
    backlog: np.ndarray,
    weights: np.ndarray,
    least: int = LEAST_ROWS,
) -> Rows:
    """NumPy leaves in the default precision, penalty infinite; padded to at least that many rows."""
    n = bucket(len(contexts), least)
    cdf = np.cumsum(weights) / weights.sum()
    cdf[np.flatnonzero(weights)[-1] :] = 1.0
    dtype = jnp.zeros((), float).dtype
    leaves = (padded(a, n) for a in (contexts, atoms, holding, backlog))
    return Rows(*(np.asarray(a, dtype) for a in (*leaves, padded(cdf, n, 1.0), np.zeros(contexts.shape[1]))))


def with_penalty(rows: Rows, scales: np.ndarray, penalty: float) -> Rows:
    """The same rows under another lambda; ``scales`` are the s of the movable columns, 0 elsewhere."""
    reach = np.zeros_like(scales) if np.isinf(penalty) else scales / np.sqrt(2 * penalty)
    return rows._replace(reach=np.asarray(reach, rows.contexts.dtype))


def context_at(i: Any, data: Rows) -> Context:
    i = jnp.asarray(i, jnp.int32)
    return Context(i, data.contexts[i], data.holding[i], data.backlog[i], data.reach)


def sample_context(key: Key, data: Rows) -> Context:
    u = random.uniform(key, dtype=data.cdf.dtype)
    return context_at(jnp.searchsorted(data.cdf, u, side="right"), data)


def sample_conditional(key: Key, xi: Context, data: Rows) -> jax.Array:
    return data.atoms[xi.row, random.randint(key, (), 0, data.atoms.shape[1])]


def support(xi: Context, data: Rows) -> tuple[jax.Array, jax.Array]:
    blocks = data.atoms.shape[1]
    return data.atoms[xi.row], jnp.full(blocks, 1 / blocks, data.atoms.dtype)


class Losses(NamedTuple):
    """f, g and the first y for rules of one structure."""

    f: Any
    g: Any
    init_y: Any


def losses_of(static: PyTree, beta: float) -> Losses:
    """Functions that are the same objects for equal structures, so that nothing is compiled twice."""
    leaves, structure = jax.tree.flatten(static)
    try:
        return _losses(tuple(leaves), structure, beta)
    except TypeError:  # a rule with unhashable parts is compiled at each fit
        return _losses.__wrapped__(tuple(leaves), structure, beta)


@lru_cache(maxsize=256)
def _losses(leaves: tuple[Any, ...], structure: Any, beta: float) -> Losses:
    static = jax.tree.unflatten(structure, leaves)

    def cost(x: X, y: jax.Array, eta: jax.Array, xi: Context) -> jax.Array:
        """l_beta, written with one softplus: softplus(z) = z + softplus(-z)."""
        over = eqx.combine(x, static)(xi.value + xi.reach * y)[:, None] - eta
        h, b = xi.holding[:, None], xi.backlog[:, None]
        return jnp.sum(jnp.mean(h * over + (h + b) * jax.nn.softplus(-beta * over) / beta, axis=1))

    def f(x: X, y: Y, eta: jax.Array, xi: Context) -> jax.Array:
        """Summed over members: each has its own adversary."""
        return jnp.sum(jax.vmap(cost, in_axes=(0, 0, None, None))(x, y, eta, xi)) - jnp.sum(y**2) / 2

    def init_y(x: X, xi: Context) -> jax.Array:
        return jnp.zeros((jax.tree.leaves(x)[0].shape[0], xi.value.shape[0]), xi.value.dtype)

    return Losses(f, lambda x, y, eta, xi: -f(x, y, eta, xi), init_y)


LOWER = epoch_sgd(beta0=1.0, cap=0.5)  # curvature is about 1
INVERSE = none()  # f = -g: grad_2 f vanishes at y* (Danskin)


def newsvendor_problem(losses: Losses, rows: Rows) -> Problem:
    return Problem(
        f=losses.f,
        g=losses.g,
        sample_context=sample_context,
        sample_conditional=sample_conditional,
        init_y=losses.init_y,
        data=jax.tree.map(jnp.asarray, rows),
        lower=LOWER,
        inverse=INVERSE,
        support=support,
    )
