"""One iteration of the SGD framework (Algorithm 2) on any optax optimizer, and the compiled chunks of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax, random
from optax import tree

from bilevelax.base.compiling import program, traced_once
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Estimate, Estimator
from bilevelax.core.problem import Key, Problem, PyTree, X


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
    est, est_state = telling_cost(estimator).estimate(key_t, problem, x, carry.est_state)
    extra = optimizer.extra(problem, x) if hasattr(optimizer, "extra") else {}  # F, for a line search
    updates, opt_state = optimizer.update(est.grad, carry.opt_state, x, **extra)

    # x_t replaces x_hat with probability 1/t: uniform on x_1..x_t wherever the run may stop
    share = 1 / t.astype(float)
    chosen = random.uniform(key_hat, dtype=float) < share
    x_hat = jax.tree.map(lambda new, old: jnp.where(chosen, new, old), x, carry.x_hat)
    x_mean = trees.add_scale(carry.x_mean, share, tree.sub(x, carry.x_mean))
    return Carry(t, optax.apply_updates(x, updates), x_hat, x_mean, opt_state, est_state), est


def telling_cost(estimator: Estimator) -> Estimator:
    """The same, with its estimate of F in ``aux`` where it can tell it."""
    if not estimator.generic:
        return estimator
    from bilevelax.problems.factor import with_cost

    return with_cost(estimator)


class Taken(NamedTuple):
    """A step of a loop, for who keeps something of it."""

    i: Any  # its number in the loop, from 0
    x: X  # where it began
    estimate: Estimate
    x_next: X  # where it ended


def take_steps(
    problem: Problem,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    carry: Carry,
    key: Key,
    n: Any,
    keep: Callable[[Any, Taken], Any] = lambda kept, taken: kept,
    room: Callable[[Taken], Any] = lambda taken: (),
    feed: Any = None,
) -> tuple[Carry, Any]:
    """The one loop around `step`: n steps, which may be traced, and what ``keep(kept, taken)`` made of them.

    That begins as ``room`` of a step's shapes: rows for chunks, nothing for sweeps. ``feed`` as in `with_contexts_of`.
    """

    @traced_once
    def taken(i: jax.Array, before: Carry) -> tuple[Carry, Taken]:
        after, estimate = step(with_contexts_of(i, problem, feed), estimator, optimizer, before, key)
        return after, Taken(i, before.x, estimate, after.x)

    def one(i: jax.Array, state: tuple[Carry, Any]) -> tuple[Carry, Any]:
        after, what = taken(jnp.asarray(i, jnp.int32), state[0])
        return after, keep(state[1], what)

    return lax.fori_loop(0, n, one, (carry, room(jax.eval_shape(taken, jnp.int32(0), carry)[1])))


def with_contexts_of(i: Any, problem: Problem, feed: Any) -> Problem:
    """The problem of a loop's step number i; ``feed`` holds every step's contexts, where they were on disk."""
    if feed is None:
        return problem
    return dataclasses.replace(problem, data=feed.of_step(i))


class Log(NamedTuple):
    """What one step of a chunk leaves behind for the host."""

    cost: Cost
    aux: dict[str, Any]
    finite: jax.Array


def log_of(taken: Taken) -> Log:
    finite = jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(taken.x_next)]).all()
    return jax.tree.map(jnp.asarray, Log(taken.estimate.cost, taken.estimate.aux, finite))


def write_log(logs: Log, taken: Taken) -> Log:
    """The log of step i in row i."""
    return jax.tree.map(lambda rows, row: rows.at[taken.i].set(row.astype(rows.dtype)), logs, log_of(taken))


@program(static_argnames=("estimator", "optimizer", "every"))
def chunk(
    problem: Problem,
    carry: Carry,
    key: Key,
    n: jax.Array,
    feed: Any = None,
    *,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    every: int,
) -> tuple[Carry, Log]:
    """n <= every steps and their logs. n is traced: one program serves every chunk."""
    empty = lambda taken: jax.tree.map(lambda a: jnp.zeros((every, *a.shape), a.dtype), jax.eval_shape(log_of, taken))
    return take_steps(problem, estimator, optimizer, carry, key, n, write_log, empty, feed)
