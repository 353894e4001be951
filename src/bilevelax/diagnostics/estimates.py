"""Independent estimates of a gradient, as rows: what certificates, biases and variances are made of."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.base.compiling import jit_once
from bilevelax.core.estimate import Estimate, Estimator
from bilevelax.core.minibatch import Batch, mean, minibatch
from bilevelax.core.problem import Key, Problem, PyTree, X, Xi
from bilevelax.diagnostics.contexts import number_of, only_contexts
from bilevelax.diagnostics.tails import scouted
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.problems.little import little_work

BATCHES = 32  # independent means that an interval is made of
SCOUTING = 2**30  # beyond the numbers of lanes, which are addressed by (key, lane)


class Means(NamedTuple):
    """Independent estimates, stacked, and what they were made of."""

    grad: X
    met: Any  # (batches, d_x): exact gradients, the mean over the contexts of each estimate; None where not asked for
    unsolved: jax.Array  # (batches,): share of the follower's problems without a minimum that was found
    lanes: jax.Array  # (batches, m): squared distance of each context's gradient from their mean; zero if one
    scouts: jax.Array  # (batches, scouts m): as of `scouted`


@jit_once(little_work, static_argnames=("estimator", "batches", "scouts"))
def means(
    key: Key,
    problem: Problem,
    x: X,
    contexts: Xi | None = None,
    grads: Any = None,
    *,
    estimator: Estimator,
    batches: int,
    scouts: int = 0,
) -> Means:
    """Independent estimates, stacked, one after another: a vmap would run each to the longest level.

    Of the problem, or of the one in which only these ``contexts`` occur, whose exact gradients may be given: what
    estimates differ from them by has the noise of outcomes only. ``scouts`` contexts are looked at
    quickly for each one.
    """
    if contexts is not None:
        problem = only_contexts(problem, contexts, numbered=grads is not None)

    def one(i: jax.Array) -> Means:
        key_i = random.fold_in(key, i)
        found, lanes = _lanes(estimator, key_i, problem, x)
        unsolved = jnp.asarray(found.aux.get("lower_unsolved", 0.0), float)
        exact = None if grads is None else met(estimator, key_i, grads)
        quick = scouted(random.fold_in(key_i, SCOUTING), problem, x, scouts * len(lanes)) if scouts else jnp.zeros(1)
        return Means(found.grad, exact, unsolved, lanes, quick)

    return lax.map(one, jnp.arange(batches, dtype=jnp.int32))


# for who takes the time of it, as a run would
optimised_means = jit_once(static_argnames=("estimator", "batches", "scouts"))(means.__wrapped__)


def _lanes(estimator: Estimator, key: Key, problem: Problem, x: X) -> tuple[Estimate, jax.Array]:
    """An estimate, and how far the gradient of each of its contexts is from it."""
    batch = estimator.settings
    if not isinstance(batch, Batch):
        return estimator.estimate(key, problem, x, estimator.init(problem, x))[0], jnp.zeros(1)
    stacked = batch.lanes(key, problem, x)
    found = mean(stacked)
    square = lambda a, b: jnp.sum((a - b[None]).astype(float) ** 2, axis=tuple(range(1, a.ndim)))
    return found, jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(square, stacked.grad, found.grad))), axis=0)


def met(estimator: Estimator, key: Key, grads: Any) -> jax.Array:
    """The mean of these contexts' gradients over those that an estimate with this key will meet.

    Over all of them where it does not tell which, or takes them evenly. Its expectation is the same.
    """
    grads = jnp.asarray(grads, float)
    if estimator.contexts is None or _spreads(estimator):
        return grads.mean(0)
    numbers = jax.vmap(lambda each: number_of(each, len(grads)))(estimator.contexts(key))
    return grads[numbers].mean(0)


def _spreads(estimator: Estimator) -> bool:
    settings = estimator.settings
    inner = getattr(settings, "estimator", None)
    return getattr(settings, "contexts", None) == "spread" or (inner is not None and _spreads(inner))


def batch_means(
    key: Key, problem: Problem, x: X, contexts: Xi | None = None, *, estimator: Estimator, batches: int
) -> PyTree:
    """The gradients of `means`."""
    return means(key, problem, x, contexts, estimator=estimator, batches=batches).grad


@jit_once(little_work, static_argnames=("estimator", "batches", "each"))
def means_in_a_row(
    key: Key,
    problem: Problem,
    x: X,
    contexts: Xi | None = None,
    *,
    estimator: Estimator,
    batches: int,
    each: int,
) -> tuple[PyTree, PyTree]:
    """`batch_means` of an estimator that remembers: one run at x whose first half is thrown away; and its last state.

    Means of ``each`` estimates in a row: what the state carries from one to the next makes them dependent.
    """
    if contexts is not None:
        problem = only_contexts(problem, contexts)

    def one(state: PyTree, key: Key) -> tuple[PyTree, X]:
        estimate, state = estimator.estimate(key, problem, x, state)
        return state, estimate.grad

    def mean(state: PyTree, keys: Key) -> tuple[PyTree, X]:
        state, grads = lax.scan(one, state, keys)
        return state, jax.tree.map(lambda a: jnp.mean(a, axis=0), grads)

    state, means = lax.scan(mean, estimator.init(problem, x), random.split(key, (2 * batches, each)))
    return jax.tree.map(lambda a: a[batches:], means), state


ON_ALL, WITHOUT_END = saa("all"), antithetic_mlmc(8, None, 0.1, factor=2)  # made once, so compiled once for a problem
# A gradient jumps where an answer changes its face: among continuous contexts samples cross with a probability of
# 1 / sqrt(n), so E|Delta_l|^2 falls as 2^{-l/2} only. Without end the variance is infinite; with an end the best
# p_l, proportional to sqrt(V_l / C_l), is 2^{-0.75 l}. The deepest level is not rare, so its noise is seen.
ACROSS_FACES = antithetic_mlmc(32, 5, 0.5, exponent=0.75, factor=2)


def unbiased(problem: Problem) -> Estimator:
    """The estimator without bias: on all outcomes where they are known, else antithetic without end.

    Of a follower with a constraint it has that of `saa` with 1,024 samples, for without end it has no variance.
    """
    if problem.support is not None:
        return ON_ALL
    return WITHOUT_END if problem.constraint is None else ACROSS_FACES


@functools.lru_cache(maxsize=64)
def batched(estimator: Estimator, n: int, contexts: str = "independent") -> Estimator:
    """The mean of n estimates; of a minibatch one after another: a vmap over its random levels would undo them."""
    return minibatch(estimator, n, "loop" if isinstance(estimator.settings, Batch) else "stratified", contexts)
