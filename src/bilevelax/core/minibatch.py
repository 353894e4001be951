"""Means of independent estimates, with a choice of how random levels share the machine."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.errors import require_choice, require_integer
from bilevelax.estimate import Count, Estimate, Estimator, Levels, stateless
from bilevelax.problem import Key, Problem, X
from bilevelax.spread import with_spread_contexts

MODES = ("stratified", "loop", "vmap", "shared")
CONTEXTS = ("independent", "spread")
FEW = 4  # a level that fewer lanes reach is not vectorised


def minibatch(estimator: Estimator, m: int, mode: str = "stratified", contexts: str = "independent") -> Estimator:
    """The mean of m estimates, each with its own context.

    A `vmap` over random levels runs every lane to the longest one and so undoes RT-MLMC;
    hence the choice of ``mode``:

    - ``stratified``: level k gets m p_k lanes (the fraction left over at random, without
      bias), and epoch k runs vectorised on the lanes that need it. Least variance.
    - ``loop``: one estimate after another, the paper's cost.
    - ``vmap``: all at once, each lane as long as the longest. Same numbers as ``loop``.
    - ``shared``: one random level for the whole batch, vectorised. Cheap, more variance.

    Estimators without levels are vectorised in the modes ``stratified`` and ``shared``.

    Contexts are ``independent`` draws, as in the paper. Where they are numbered, ``contexts="spread"``
    takes one from each of m equal stretches of the numbers: same mean, less variance, and the full
    batch, each context once, where m is ``n_contexts``.
    """
    require_integer("m", "minibatch", m, 1)
    require_choice("mode", "minibatch", mode, MODES)
    require_choice("contexts", "minibatch", contexts, CONTEXTS)
    batch, levels = Batch(estimator, m, mode, contexts), estimator.levels

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        keys, key_k = lane_keys(key, m), random.fold_in(key, m)
        problem = batch.with_contexts(problem, key)
        if mode == "stratified" and levels is not None:
            return mean(stratified(levels, key_k, keys, problem, x))
        k = levels.draw(key_k) if mode == "shared" and levels is not None else None
        return mean(unstratified(batch, keys, k, problem, x))

    asked = None if estimator.contexts is None else lambda key: batch.keys_of_contexts(key)
    whole = stateless(estimate, settings=estimator.settings, contexts=asked)
    return whole._replace(batch=batch)


class Batch(NamedTuple):
    """What a minibatch is made of."""

    estimator: Estimator
    m: int
    mode: str
    contexts: str

    def with_contexts(self, problem: Problem, key: Key) -> Problem:
        """The problem whose contexts are those of the minibatch with this key."""
        if self.contexts == "independent":
            return problem
        if self.estimator.contexts is None:
            raise ValueError(
                "contexts='spread' of minibatch needs an estimator that tells which keys its contexts get: "
                "stateless(..., contexts=...), see `Estimator`. This one does not."
            )
        return with_spread_contexts(problem, random.fold_in(key, self.m + 1), self.keys_of_contexts(key))

    def keys_of_contexts(self, key: Key) -> Key:
        """The stacked keys that the contexts of all lanes will be drawn with."""
        assert self.estimator.contexts is not None
        keys = jax.vmap(self.estimator.contexts)(lane_keys(key, self.m))
        return keys.reshape(-1, *keys.shape[2:])


def unstratified(batch: Batch, keys: Key, k: Count | None, problem: Problem, x: X) -> Estimate:
    """Stacked estimates whose levels are not stratified; k is the level that all of them share, if they do."""
    estimator = batch.estimator

    def one(key: Key) -> Estimate:
        state = estimator.init(problem, x)
        if jax.tree.leaves(state):
            raise ValueError(
                "`estimator` of minibatch must keep no state between calls. This one does; give it its own batch size."
            )
        if k is not None and estimator.levels is not None:
            return estimator.levels.at_level(k, key, problem, x)
        return estimator.estimate(key, problem, x, state)[0]

    return lax.map(one, keys) if batch.mode == "loop" else jax.vmap(one)(keys)


def lane_keys(key: Key, m: int) -> Key:
    """The keys of the m estimates."""
    return jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(m))


def mean(estimates: Estimate) -> Estimate:
    """The mean of stacked estimates; their costs add up. The level of each is kept as ``levels``."""
    average = lambda a: jnp.mean(a, axis=0)
    levels = estimates.aux.get("levels", estimates.aux.get("level"))
    kept = {} if levels is None else {"levels": levels.reshape(-1)}
    return Estimate(
        grad=jax.tree.map(average, estimates.grad),
        cost=jax.tree.map(lambda a: jnp.sum(a, axis=0), estimates.cost),
        aux={**jax.tree.map(average, estimates.aux), **kept},
        visits=jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), estimates.visits),
    )


def shares(probabilities: tuple[float, ...], m: int) -> tuple[np.ndarray, np.ndarray]:
    """(lanes that each level gets for sure, the fraction of a lane left over)."""
    wanted = m * np.asarray(probabilities)
    sure = np.floor(wanted + 1e-9).astype(int)  # 32 * 0.5 may come out as 15.999999
    return sure, np.maximum(wanted - sure, 0.0)


def leftover_levels(key: Key, fraction: np.ndarray, n: int) -> jax.Array:
    """n indices, of which index i comes up fraction[i] times on average (systematic sampling)."""
    edges = jnp.asarray(np.cumsum(fraction)[:-1], dtype=float)
    ticks = random.uniform(key, dtype=float) + jnp.arange(n, dtype=float)
    return jnp.searchsorted(edges, ticks, side="right").astype(jnp.int32)


class Plan(NamedTuple):
    """The levels of the lanes, in their order: vectorised ones, deepest first, others, and those drawn at random."""

    first: int
    known: tuple[int, ...]
    alone: tuple[int, ...]
    fraction: np.ndarray
    left: int


def plan_of(levels: Levels, m: int) -> Plan:
    """Levels that few lanes reach are not vectorised: that would gain little and compile one more program for each."""
    sure, fraction = shares(levels.probabilities, m)
    deepest_first = [levels.first + i for i in reversed(range(len(sure))) for _ in range(sure[i])]
    alone = sum(level > deepest_first[FEW - 1] for level in deepest_first) if len(deepest_first) >= FEW else m
    known, rest = tuple(deepest_first[alone:]), tuple(deepest_first[:alone])
    return Plan(levels.first, known, rest, fraction, m - len(deepest_first))


def left_levels(plan: Plan, key: Key) -> jax.Array:
    return plan.first + leftover_levels(key, plan.fraction, plan.left)


def stratified(levels: Levels, key: Key, keys: Key, problem: Problem, x: X) -> Estimate:
    """Stacked estimates whose levels are as evenly spread as their number allows, each weighted by its own 1/p_k."""
    plan = plan_of(levels, len(keys))
    rest = jnp.concatenate([jnp.asarray(plan.alone, jnp.int32), left_levels(plan, key)])
    return levels.at_levels(plan.known, rest, keys, problem, x)
