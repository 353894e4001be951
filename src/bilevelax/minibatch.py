"""Means of independent estimates, with a choice of how random levels share the machine."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.errors import require_choice, require_integer
from bilevelax.estimate import Estimate, Estimator, Levels, stateless
from bilevelax.problem import Key, Problem, X

MODES = ("stratified", "loop", "vmap", "shared")
FEW = 4  # a level that fewer lanes reach is not vectorised


def minibatch(estimator: Estimator, m: int, mode: str = "stratified") -> Estimator:
    """The mean of m estimates, each with its own context.

    A `vmap` over random levels runs every lane to the longest one and so undoes RT-MLMC;
    hence the choice of ``mode``:

    - ``stratified``: level k gets m p_k lanes (the fraction left over at random, without
      bias), and epoch k runs vectorised on the lanes that need it. Least variance.
    - ``loop``: one estimate after another, the paper's cost.
    - ``vmap``: all at once, each lane as long as the longest. Same numbers as ``loop``.
    - ``shared``: one random level for the whole batch, vectorised. Cheap, more variance.

    Estimators without levels are vectorised in the modes ``stratified`` and ``shared``.
    """
    require_integer("m", "minibatch", m, 1)
    require_choice("mode", "minibatch", mode, MODES)
    levels = estimator.levels

    def one(key: Key, problem: Problem, x: X) -> Estimate:
        state = estimator.init(problem, x)
        if jax.tree.leaves(state):
            raise ValueError(
                "`estimator` of minibatch must keep no state between calls. This one does; give it its own batch size."
            )
        return estimator.estimate(key, problem, x, state)[0]

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        keys = jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(m))
        if mode == "loop":
            estimates = lax.map(lambda key: one(key, problem, x), keys)
        elif mode == "vmap" or levels is None:
            estimates = jax.vmap(lambda key: one(key, problem, x))(keys)
        elif mode == "shared":
            k = levels.draw(random.fold_in(key, m))
            estimates = jax.vmap(lambda key: levels.at_level(k, key, problem, x))(keys)
        else:
            estimates = stratified(levels, random.fold_in(key, m), keys, problem, x)
        return mean(estimates)

    return stateless(estimate, settings=estimator.settings)


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


def stratified(levels: Levels, key: Key, keys: Key, problem: Problem, x: X) -> Estimate:
    """Stacked estimates whose levels are as evenly spread as their number allows, each weighted by its own 1/p_k.

    Levels that few lanes reach run one by one with the left-over lanes: vectorising them would
    gain little and compile one more program for each level.
    """
    sure, fraction = shares(levels.probabilities, len(keys))
    deepest_first = [levels.first + i for i in reversed(range(len(sure))) for _ in range(sure[i])]
    alone = sum(level > deepest_first[FEW - 1] for level in deepest_first) if len(deepest_first) >= FEW else len(keys)
    known = tuple(deepest_first[alone:])
    left = levels.first + leftover_levels(key, fraction, len(keys) - len(deepest_first))
    rest = jnp.concatenate([jnp.asarray(deepest_first[:alone], jnp.int32), left])
    return levels.at_levels(known, rest, keys, problem, x)
