"""Randomly truncated multilevel Monte Carlo gradient (Section 2.1, Algorithm 3)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from optax import tree

from bilevelax import trees
from bilevelax.errors import require_integer
from bilevelax.estimate import Cost, Count, Estimate, Estimator, Levels, first_of_split, stateless
from bilevelax.hypergradient import hypergradient
from bilevelax.inverse import SMALL, InverseHessian, inverse_of
from bilevelax.lower import Iterates, LowerSolver, lower_of
from bilevelax.problem import Key, Problem, X, Xi


def level_probabilities(K: int, base_level: int = 1) -> np.ndarray:
    """p_k proportional to 2^{-k} for k = base_level..K; entry k - base_level holds p_k."""
    p = 2.0 ** -np.arange(1, K - base_level + 2)
    return p / p.sum()


def draw_level(key: Key, K: int, base_level: int = 1) -> jax.Array:
    """k with probability p_k, by inverting the distribution function."""
    edges = jnp.asarray(np.cumsum(level_probabilities(K, base_level))[:-1], dtype=float)
    return base_level + jnp.searchsorted(edges, random.uniform(key, dtype=float), side="right").astype(jnp.int32)


class Settings(NamedTuple):
    """The arguments of `rt_mlmc`, and of `dl_sgd`."""

    K: int
    lower: LowerSolver | None = None
    inverse: InverseHessian | None = None
    batch: int = 1
    base_level: int = 1


def combine(k: Count, key_v: Key, problem: Problem, x: X, xi: Xi, y: Iterates, settings: Settings) -> Estimate:
    """v^1 + (v^{k+1} - v^k) / p_k from the three iterates of level k.

    The three terms share one key, hence one draw of eta', eta'' and (eta_n): that coupling is
    what makes the difference small.
    """
    inverse = inverse_of(problem, settings.inverse)
    points = jax.tree.map(lambda *leaves: jnp.stack(leaves), y.first, y.prev, y.last)
    each = (
        jax.vmap if tree.size(y.first) <= SMALL else lambda v: partial(lax.map, v)
    )  # large ones gain nothing together
    v, costs = each(lambda y: hypergradient(key_v, problem, x, y, xi, inverse, settings.batch))(points)
    v_first, v_prev, v_last = (jax.tree.map(lambda a: a[i], v) for i in range(3))  # noqa: B023 (used at once)

    probabilities = jnp.asarray(level_probabilities(settings.K, settings.base_level), dtype=float)
    grad = trees.add_scale(v_first, 1 / probabilities[k - settings.base_level], tree.sub(v_last, v_prev))
    cost = Cost(xi=1) + y.cost + jax.tree.map(lambda a: a[0], costs).at_points(3)
    return Estimate(grad, cost, {"level": jnp.asarray(k, jnp.int32)})


def at_level(k: Count, key: Key, problem: Problem, x: X, **settings: Any) -> Estimate:
    """The estimate at level k (Algorithm 3 with k-hat = k). ``settings`` are those of `rt_mlmc`.

    Draws are addressed, not consumed, so sum_k p_k at_level(k, key) equals `dl_sgd(K)` at the
    same key, exactly.
    """
    return _at_level(k, key, problem, x, Settings(**settings))


def _at_level(k: Count, key: Key, problem: Problem, x: X, settings: Settings) -> Estimate:
    key_xi, _, key_y, key_v = random.split(key, 4)
    xi = problem.context(key_xi)
    y = lower_of(problem, settings.lower)(key_y, problem, x, xi, k, settings.base_level)
    return combine(k, key_v, problem, x, xi, y, settings)


def _at_levels(
    known: tuple[int, ...], rest: jax.Array, keys: Key, problem: Problem, x: X, settings: Settings
) -> Estimate:
    """Many estimates: of levels known at compile time, deepest first, then of traced levels.

    The first run vectorised, the others one by one, so no lane waits for a longer one, as it
    would in a `vmap` of `at_level`.
    """
    lower = lower_of(problem, settings.lower)
    split = jax.vmap(lambda key: random.split(key, 4))(keys)
    key_y, key_v = split[:, 2], split[:, 3]
    xi = jax.vmap(problem.context)(split[:, 0])

    def solve(lane: tuple[Any, ...]) -> Iterates:
        k, key, xi = lane
        return lower(key, problem, x, xi, k, settings.base_level)

    n = len(known)
    parts = [_known_levels(known, key_y[:n], problem, x, _lanes(xi, 0, n), lower, settings.base_level)] if n else []
    if len(rest):
        parts.append(lax.map(solve, (rest, key_y[n:], _lanes(xi, n, None))))
    y = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    ks = jnp.concatenate([jnp.asarray(known, jnp.int32), rest])
    return lax.map(
        lambda lane: combine(lane[0], lane[1], problem, x, lane[2], lane[3], settings),
        (ks, key_v, xi, y),
        batch_size=len(ks) if tree.size(y.first) <= SMALL * len(ks) else None,
    )


def _known_levels(
    ks: tuple[int, ...], keys: Key, problem: Problem, x: X, xi: Xi, lower: LowerSolver, base_level: int
) -> Iterates:
    """Stacked iterates; epoch k runs on the static slice of lanes whose level is k or more."""
    state = jax.vmap(lambda xi: lower.init(problem, x, xi))(xi)
    value = jax.vmap(lower.value)
    steps = jnp.zeros(len(ks), jnp.int32)
    first, finished = value(state), []
    for k in range(1, ks[0] + 1):
        prev, active = value(state), len(steps)
        epoch = jax.vmap(lambda key, xi, state, k=k: lower.epoch(key, problem, x, xi, state, k))
        state, taken = epoch(keys[:active], _lanes(xi, 0, active), state)
        steps, last = steps + taken, value(state)
        if k < base_level:
            first = last
        going_on = sum(level > k for level in ks)  # a prefix: deepest first
        finished.append(_lanes((prev, last, steps), going_on, None))
        state, steps = _lanes((state, steps), 0, going_on)
    prev, last, steps = jax.tree.map(lambda *parts: jnp.concatenate(parts[::-1]), *finished)
    return Iterates(first, prev, last, steps, jax.vmap(lower.cost)(steps))


def _lanes(stacked: Any, start: int, stop: int | None) -> Any:
    return jax.tree.map(lambda a: a[start:stop], stacked)


def rt_mlmc(
    K: int = 6,
    lower: LowerSolver | None = None,
    inverse: InverseHessian | None = None,
    batch: int = 1,
    base_level: int = 1,
) -> Estimator:
    r"""RT-MLMC, eq. (7): the mean of `dl_sgd(K)` for O(K) instead of O(2^K) samples.

    .. math::
        \hat v = v^{1} + (v^{\hat k+1} - v^{\hat k}) / p_{\hat k}, \quad p_k \propto 2^{-k}, \; k = 1..K

    where v^j is eq. (6) at y_j^0 and all three share their draws.

    Args:
        K: deepest level.
        lower: lower solver; by default the problem's own, else `epoch_sgd()`.
        inverse: inverse-Hessian estimate; by default the problem's own, else `neumann()`.
        batch: samples averaged in each draw of the hypergradient; 1 is the paper.
        base_level: k0 > 1 starts from v^{k0} instead of v^1, with levels k0..K: dearer, and
            less variance where the initial guess is poor.
    """
    require_integer("K", "rt_mlmc", K, 1)
    require_integer("batch", "rt_mlmc", batch, 1)
    require_integer("base_level", "rt_mlmc", base_level, 1)
    if base_level > K:
        raise ValueError(f"`base_level` of rt_mlmc must not exceed K = {K}. Got {base_level}.")
    settings = Settings(K, lower, inverse, batch, base_level)
    levels = Levels(
        first=base_level,
        probabilities=tuple(level_probabilities(K, base_level).tolist()),
        draw=partial(draw_level, K=K, base_level=base_level),
        at_level=partial(_at_level, settings=settings),
        at_levels=partial(_at_levels, settings=settings),
    )

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        key_k = random.split(key, 4)[1]
        return levels.at_level(levels.draw(key_k), key, problem, x)

    return stateless(estimate, levels, settings, contexts=first_of_split(4))
