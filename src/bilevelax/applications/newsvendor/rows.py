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

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.applications.newsvendor import adversary
from bilevelax.applications.newsvendor.adversary import Losses, Moves, OrderCost, of_members
from bilevelax.applications.newsvendor.loss import smooth_loss
from bilevelax.applications.newsvendor.policies import cached_by_structure
from bilevelax.core.inverse import none
from bilevelax.core.lower import epoch_sgd
from bilevelax.core.problem import Key, Problem, PyTree, X


class Rows(NamedTuple):
    """The data leaves, padded to a bucket of rows."""

    contexts: Any  # (rows, d), standardised
    atoms: Any  # (rows, blocks, outputs, m): equally likely outcomes of m demands each, standardised
    holding: Any  # (rows, outputs), per standardised unit
    backlog: Any
    cdf: Any  # (rows,): cumulative probability of the rows; 1 on padding, which is never drawn
    reach: Any  # (d,): r s, how far a unit of y moves each column; deviation of the noise of an entropic adversary
    tilt: Any = 0.0  # a of an entropic adversary


class Context(NamedTuple):
    """A row: what the losses need to know of it."""

    row: jax.Array
    value: jax.Array
    holding: jax.Array
    backlog: jax.Array
    reach: jax.Array
    tilt: jax.Array


def with_penalty(rows: Rows, scales: np.ndarray, penalty: float, noise: float | None = None) -> Rows:
    """The same rows under another lambda.

    Args:
        rows: those.
        scales: the s of the movable columns, 0 elsewhere.
        penalty: lambda.
        noise: deviation of an entropic adversary's noise, in units of s; None for the adversary of eq. (11).
    """
    if noise is None:
        reach, tilt = scales * (0.0 if np.isinf(penalty) else 1 / np.sqrt(2 * penalty)), 0.0
    else:
        reach, tilt = scales * noise, 1 / (2 * penalty * noise**2)
    dtype = rows.contexts.dtype
    return rows._replace(reach=np.asarray(reach, dtype), tilt=np.asarray(tilt, dtype))


def context_at(i: Any, data: Rows) -> Context:
    i = jnp.asarray(i, jnp.int32)
    return Context(i, data.contexts[i], data.holding[i], data.backlog[i], data.reach, data.tilt)


def sample_context(key: Key, data: Rows) -> Context:
    u = random.uniform(key, dtype=data.cdf.dtype)
    return context_at(jnp.searchsorted(data.cdf, u, side="right"), data)


def sample_conditional(key: Key, xi: Context, data: Rows) -> jax.Array:
    return data.atoms[xi.row, random.randint(key, (), 0, data.atoms.shape[1])]


def support(xi: Context, data: Rows) -> tuple[jax.Array, jax.Array]:
    blocks = data.atoms.shape[1]
    return data.atoms[xi.row], jnp.full(blocks, 1 / blocks, data.atoms.dtype)


MOVES = Moves(
    place=lambda y, xi: xi.value + xi.reach * y,
    price=lambda y, xi: jnp.sum(y**2) / 2,
    start=lambda xi: jnp.zeros_like(xi.value),
)


def cost_of(static: PyTree, beta: float) -> OrderCost:
    """l_beta of the order that a rule places at z."""

    def cost(x: X, z: jax.Array, eta: jax.Array, xi: Context) -> jax.Array:
        """Over the demands (outputs, m) of an outcome the mean, over outputs the sum."""
        orders = eqx.combine(x, static)(z)[:, None]
        return jnp.sum(jnp.mean(smooth_loss(orders, eta, xi.holding[:, None], xi.backlog[:, None], beta), axis=1))

    return cost


@cached_by_structure
def losses_of(static: PyTree, beta: float) -> Losses:
    """Of stacked rules of one structure: the same functions for equal ones, so that nothing is compiled twice."""
    return of_members(adversary.losses_of(cost_of(static, beta), MOVES))


def ascent_of(steps: int) -> Callable[[Problem], jax.Array]:
    """That many steps of the adversary of a `newsvendor_problem`, none where it may move nothing."""
    return lambda problem: jnp.where(jnp.any(problem.data.reach > 0), steps, 0)


LOWER = epoch_sgd(beta0=1.0, cap=0.5)  # curvature is about 1
INVERSE = none()  # f = -g: grad_2 f vanishes at y* (Danskin)


def newsvendor_problem(losses: Losses, rows: Rows) -> Problem:
    return Problem(
        **losses._asdict(),
        sample_context=sample_context,
        sample_conditional=sample_conditional,
        data=jax.tree.map(jnp.asarray, rows),
        lower=LOWER,
        inverse=INVERSE,
        support=support,
    )
