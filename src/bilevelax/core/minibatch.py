"""Means of independent estimates, with a choice of how random levels share the machine."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.base.errors import require_choice, require_integer
from bilevelax.core.estimate import Estimate, Estimator, lifted, stateless
from bilevelax.core.levels import plan_of, stratified_levels
from bilevelax.core.problem import Key, Problem, X

MODES = ("stratified", "loop", "vmap", "shared")
WAYS_TO_DRAW = ("independent", "spread")


def minibatch(estimator: Estimator, m: int, mode: str = "stratified", contexts: str = "independent") -> Estimator:
    """The mean of m estimates, each with its own context.

    A `vmap` over random levels runs every lane to the longest one and so undoes RT-MLMC;
    hence the choice of ``mode``:

    - ``stratified``: level k gets m p_k lanes (the fraction left over at random, without
      bias), and lanes of like levels climb together. Least variance.
    - ``loop``: one estimate after another, the paper's cost.
    - ``vmap``: all at once, each lane as long as the longest. Same numbers as ``loop``.
    - ``shared``: one random level for the whole batch, vectorised. Cheap, more variance.

    Estimators without levels are vectorised in the modes ``stratified`` and ``shared``.

    Contexts are ``independent`` draws, as in the paper. Where they are numbered, ``contexts="spread"``
    takes one from each of m equal stretches of the numbers: same mean, less variance, and the full
    batch, each context once, where m is ``n_contexts``.

    A minibatch of `warm_started` estimates is the warm-started minibatch.
    """
    require_integer("m", "minibatch", m, 1)
    require_choice("mode", "minibatch", mode, MODES)
    require_choice("contexts", "minibatch", contexts, WAYS_TO_DRAW)
    warm = lifted(estimator, lambda inner: minibatch(inner, m, mode, contexts))
    if warm is not None:
        return warm
    batch = Batch(estimator, m, mode, contexts)
    asked = None if estimator.contexts is None else lambda key: batch.keys_of_contexts(key)
    whole = lambda *drawn: mean(batch.lanes(*drawn))
    return stateless(whole, settings=batch, contexts=asked, generic=estimator.generic)


class Batch(NamedTuple):
    """What a minibatch is made of."""

    estimator: Estimator
    m: int
    mode: str
    contexts: str

    def levels(self, key: Key) -> jax.Array | None:
        """The levels of all lanes, or None where each lane draws its own."""
        levels = self.estimator.levels
        if levels is None or self.mode in ("loop", "vmap"):
            return None
        key_k = random.fold_in(key, self.m)
        if self.mode == "shared":
            return jnp.broadcast_to(levels.draw(key_k), (self.m,))
        return stratified_levels(plan_of(levels, self.m), key_k)

    def estimates(self, ks: jax.Array | None, keys: Key, problem: Problem, x: X) -> Estimate:
        """The stacked estimates of some lanes."""
        levels = self.estimator.levels
        if levels is not None and ks is not None:
            if self.mode == "stratified":
                return levels.at_levels(ks, keys, problem, x)
            return jax.vmap(lambda key: levels.at_level(ks[0], key, problem, x))(keys)
        one = partial(self.one, problem=problem, x=x)
        return lax.map(one, keys) if self.mode == "loop" else jax.vmap(one)(keys)

    def lanes(self, key: Key, problem: Problem, x: X) -> Estimate:
        """The stacked estimates whose mean the minibatch is."""
        return self.estimates(self.levels(key), lane_keys(key, self.m), self.with_contexts(problem, key), x)

    def one(self, key: Key, problem: Problem, x: X) -> Estimate:
        """One estimate, of an estimator that forgets."""
        if self.estimator.keeps_state(problem, x):
            raise ValueError(
                "`estimator` of minibatch must keep no state between calls. This one does; give it its own batch size."
            )
        return self.estimator.estimate(key, problem, x, self.estimator.init(problem, x))[0]

    def with_contexts(self, problem: Problem, key: Key) -> Problem:
        """The problem whose contexts are those of the minibatch with this key."""
        if self.contexts == "independent":
            return problem
        from bilevelax.problems.spread import with_spread_contexts  # that part stands on this one

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
