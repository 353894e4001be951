"""Independent estimates of a gradient, as rows: what certificates, biases and variances are made of."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.base.compiling import jit_once
from bilevelax.core.estimate import Estimator
from bilevelax.core.minibatch import Batch, minibatch
from bilevelax.core.problem import Key, Problem, PyTree, X, Xi
from bilevelax.diagnostics.contexts import only_contexts
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.estimators.saa import saa

BATCHES = 32  # independent means that an interval is made of


@jit_once(static_argnames=("estimator", "batches"))
def batch_means(
    key: Key, problem: Problem, x: X, contexts: Xi | None = None, *, estimator: Estimator, batches: int
) -> PyTree:
    """Independent estimates, stacked, one after another: a vmap would run each to the longest level.

    Of the problem, or of the one in which only these ``contexts`` occur.
    """
    if contexts is not None:
        problem = only_contexts(problem, contexts)

    def one(i: jax.Array) -> X:
        return estimator.estimate(random.fold_in(key, i), problem, x, estimator.init(problem, x))[0].grad

    return lax.map(one, jnp.arange(batches, dtype=jnp.int32))


@jit_once(static_argnames=("estimator", "batches", "each"))
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


def unbiased(problem: Problem) -> Estimator:
    """The estimator without bias: on all outcomes where they are known, else antithetic without end."""
    return ON_ALL if problem.support is not None else WITHOUT_END


@functools.lru_cache(maxsize=64)
def batched(estimator: Estimator, n: int, contexts: str = "independent") -> Estimator:
    """The mean of n estimates; of a minibatch one after another: a vmap over its random levels would undo them."""
    return minibatch(estimator, n, "loop" if isinstance(estimator.settings, Batch) else "stratified", contexts)
