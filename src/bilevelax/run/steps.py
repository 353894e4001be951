"""One iteration of the SGD framework (Algorithm 2) on any optax optimizer, and the compiled chunks of them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax, random
from optax import tree

from bilevelax import trees
from bilevelax.estimate import Cost, Estimate, Estimator
from bilevelax.feed import Fed, at_step
from bilevelax.problem import Key, Problem, PyTree, X


class Carry(NamedTuple):
    """All that moves from step to step: what a checkpoint has to hold."""

    t: jax.Array  # steps taken
    x: X
    x_hat: X  # uniform on x_1..x_t
    x_mean: X  # mean of x_1..x_t
    opt_state: PyTree
    est_state: PyTree


def initial_carry(problem: Problem, estimator: Estimator, optimizer: optax.GradientTransformation, x1: X) -> Carry:
    t = jnp.zeros((), jnp.int32)
    return Carry(t, x1, x1, x1, optimizer.init(x1), estimator.init(problem, x1))


def step_keys(key: Key, t: Any) -> Key:
    """Step t's two keys: the estimate's, and the choice of x_hat's."""
    return random.split(random.fold_in(key, t))


def step(
    problem: Problem, estimator: Estimator, optimizer: optax.GradientTransformation, carry: Carry, key: Key
) -> tuple[Carry, Estimate]:
    """One iteration of Algorithm 2, whose draws are addressed by (key, t)."""
    t, x = carry.t + 1, carry.x
    key_t, key_hat = step_keys(key, t)
    est, est_state = estimator.estimate(key_t, problem, x, carry.est_state)
    updates, opt_state = optimizer.update(est.grad, carry.opt_state, x)

    # x_t replaces x_hat with probability 1/t: uniform on x_1..x_t wherever the run may stop
    share = 1 / t.astype(float)
    chosen = random.uniform(key_hat, dtype=float) < share
    x_hat = jax.tree.map(lambda new, old: jnp.where(chosen, new, old), x, carry.x_hat)
    x_mean = trees.add_scale(carry.x_mean, share, tree.sub(x, carry.x_mean))
    return Carry(t, optax.apply_updates(x, updates), x_hat, x_mean, opt_state, est_state), est


class Log(NamedTuple):
    """What one step leaves behind for the host."""

    cost: Cost
    aux: dict[str, Any]
    finite: jax.Array


@partial(jax.jit, static_argnames=("estimator", "optimizer", "every"))
def chunk(
    problem: Problem,
    carry: Carry,
    key: Key,
    n: jax.Array,
    feed: Fed | None = None,
    *,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    every: int,
) -> tuple[Carry, Log]:
    """n <= every iterations and their logs. n is traced: one program serves every chunk.

    ``feed`` holds the contexts of every step, for a problem that has them on disk.
    """

    def one(carry: Carry, i: Any) -> tuple[Carry, Log]:
        here = problem if feed is None else dataclasses.replace(problem, data=at_step(feed, i))
        carry, est = step(here, estimator, optimizer, carry, key)
        finite = jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(carry.x)]).all()
        return carry, jax.tree.map(jnp.asarray, Log(est.cost, est.aux, finite))

    def record(i: jax.Array, state: tuple[Carry, Log]) -> tuple[Carry, Log]:
        carry, log = one(state[0], i)
        return carry, jax.tree.map(lambda rows, row: rows.at[i].set(row.astype(rows.dtype)), state[1], log)

    shapes = jax.eval_shape(one, carry, 0)[1]
    empty = jax.tree.map(lambda s: jnp.zeros((every, *s.shape), s.dtype), shapes)
    return lax.fori_loop(0, n, record, (carry, empty))
