"""Levels: how likely each is, what one lane does at its level, and how lanes of many levels share the machine.

A lane makes one estimate in three parts: it starts, which is the same at every level; it climbs to its level k; it
finishes. An estimator says only these. Lanes that climb together have like levels, so that none waits long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.core.estimate import Count, Estimate
from bilevelax.core.problem import Key, Problem, PyTree, X

LEAST, SHARE = 4, 16  # a sixteenth of the lanes climb together: the longest of them sets their time, and few are long
FINE = 2.0**-16  # probabilities below are not told apart well enough by one uniform number in single precision

Lane = Any


def geometric(n: int, ratio: float) -> np.ndarray:
    """n probabilities proportional to ratio, ratio^2, ..."""
    p: np.ndarray = ratio ** np.arange(1, n + 1)
    return np.asarray(p / p.sum())


def draw_level(key: Key, probabilities: tuple[float, ...], first: int = 0) -> jax.Array:
    """``first + i`` with probability p_i: by inverting the distribution function, or by coins where some are tiny."""
    if min(probabilities) >= FINE:
        edges = jnp.asarray(np.cumsum(probabilities)[:-1], dtype=float)
        return first + jnp.searchsorted(edges, random.uniform(key, dtype=float), side="right").astype(jnp.int32)
    beyond = np.cumsum(probabilities[::-1])[::-1]  # P(level >= i)
    stop = jnp.asarray([p / q for p, q in zip(probabilities, beyond, strict=True)], dtype=float)
    last = len(probabilities) - 1

    def passed(i: jax.Array) -> jax.Array:
        return (i < last) & (random.uniform(random.fold_in(key, i), dtype=float) >= stop[i])

    return first + lax.while_loop(passed, lambda i: i + 1, jnp.zeros((), jnp.int32))


class Levels(NamedTuple):
    """A multilevel estimator: its levels first, first + 1, ..., and what a lane does at level k.

    ``start(key, problem, x) -> lane``; ``climb(k, lane, problem, x, top) -> lane`` of the same
    structure, unchanged at the first level, where ``top >= k`` is the highest level of the lanes that climb together,
    or None; ``finish(k, lane, problem, x) -> Estimate``.
    """

    first: int
    probabilities: tuple[float, ...]
    start: Callable[[Key, Problem, X], Lane]
    climb: Callable[[Count, Lane, Problem, X, Count | None], Lane]
    finish: Callable[[Count, Lane, Problem, X], Estimate]

    def draw(self, key: Key) -> jax.Array:
        """A random level."""
        return draw_level(key, self.probabilities, self.first)

    def estimate(self, key: Key, problem: Problem, x: X) -> Estimate:
        """One estimate at a random level."""
        return self.at_level(self.draw(random.split(key, 4)[1]), key, problem, x)

    def at_level(self, k: Count, key: Key, problem: Problem, x: X) -> Estimate:
        """One estimate at level k."""
        return self.finish(k, self.climb(k, self.start(key, problem, x), problem, x, None), problem, x)

    def at_levels(self, ks: jax.Array, keys: Key, problem: Problem, x: X) -> Estimate:
        """Stacked estimates at the levels ``ks``.

        Levels are data: the parts of a lane appear once in a program, whatever the number of levels and lanes. The
        deepest lanes climb first, in groups of like levels; those at the first level, most of them, have nothing to
        climb. Each lane keeps its key, so that the schedule changes no estimate.
        """
        deepest_first = jnp.argsort(-ks, stable=True)
        ks, keys = ks[deepest_first], keys[deepest_first]
        lanes = jax.vmap(lambda key: self.start(key, problem, x))(keys)
        small = problem.is_small(x, jax.eval_shape(problem.context, random.key(0)))

        def climb(group: tuple[jax.Array, Lane]) -> tuple[jax.Array, Lane]:
            top = jnp.max(group[0])
            return group[0], jax.vmap(lambda k, lane: self.climb(k, lane, problem, x, top))(*group)

        width = max(LEAST, len(ks) // SHARE) if small else 1
        ks, lanes = in_groups(climb, (ks, lanes), width, jnp.sum(ks > self.first, dtype=jnp.int32))
        finish = lambda lane: self.finish(lane[0], lane[1], problem, x)
        done = (jax.vmap(finish) if small else lambda stacked: lax.map(finish, stacked))((ks, lanes))
        place = jnp.argsort(deepest_first)
        estimates: Estimate = jax.tree.map(lambda a: a[place], done)
        return estimates


def in_groups(function: Callable[[PyTree], PyTree], stacked: PyTree, width: int, n: Count) -> PyTree:
    """``stacked`` with ``function`` applied to ``width`` rows at a time, to as many groups as hold the first n rows.

    n may be traced. The last group is filled up with copies of the last row.
    """
    rows = len(jax.tree.leaves(stacked)[0])
    width = min(width, rows)
    filled = np.minimum(np.arange(-(-rows // width) * width), rows - 1)

    def put(i: Count, stacked: PyTree) -> PyTree:
        group = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, i * width, width), stacked)
        place = lambda a, new: lax.dynamic_update_slice_in_dim(a, new, i * width, 0)
        return jax.tree.map(place, stacked, function(group))

    done = lax.fori_loop(0, -(-n // width), put, jax.tree.map(lambda a: a[filled], stacked))
    return jax.tree.map(lambda a: a[:rows], done)


class Plan(NamedTuple):
    """The levels of m lanes: those that are sure, deepest first, and how the others are drawn."""

    first: int
    sure: tuple[int, ...]
    fraction: np.ndarray  # of a lane that is left over at each level
    left: int


def shares(probabilities: tuple[float, ...], m: int) -> tuple[np.ndarray, np.ndarray]:
    """(lanes that each level gets for sure, the fraction of a lane left over)."""
    wanted = m * np.asarray(probabilities)
    sure = np.floor(wanted + 1e-9).astype(int)  # 32 * 0.5 may come out as 15.999999
    return sure, np.maximum(wanted - sure, 0.0)


def plan_of(levels: Levels, m: int) -> Plan:
    """Level k gets m p_k of m lanes; the fraction left over at random, without bias."""
    sure, fraction = shares(levels.probabilities, m)
    deepest_first = [levels.first + i for i in reversed(range(len(sure))) for _ in range(sure[i])]
    return Plan(levels.first, tuple(deepest_first), fraction, m - len(deepest_first))


def leftover_levels(key: Key, fraction: np.ndarray, n: int) -> jax.Array:
    """n indices, of which index i comes up fraction[i] times on average (systematic sampling)."""
    edges = jnp.asarray(np.cumsum(fraction)[:-1], dtype=float)
    ticks = random.uniform(key, dtype=float) + jnp.arange(n, dtype=float)
    return jnp.searchsorted(edges, ticks, side="right").astype(jnp.int32)


def stratified_levels(plan: Plan, key: Key) -> jax.Array:
    """The level of every lane."""
    left = plan.first + leftover_levels(key, plan.fraction, plan.left)
    return jnp.concatenate([jnp.asarray(plan.sure, jnp.int32), left])
