"""Randomly truncated multilevel Monte Carlo gradient (Section 2.1, Algorithm 3)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from optax import tree

from bilevelax.core import trees
from bilevelax.core.double_loop import DoubleLoop
from bilevelax.core.estimate import Cost, Count, Estimate, Estimator, first_of_split, stateless
from bilevelax.core.inverse import InverseHessian
from bilevelax.core.levels import Levels, geometric
from bilevelax.core.lower import Iterating, LowerSolver
from bilevelax.core.problem import Key, Problem, X, Xi


def level_probabilities(K: int, base_level: int = 1) -> np.ndarray:
    """p_k proportional to 2^{-k} for k = base_level..K; entry k - base_level holds p_k."""
    return geometric(K - base_level + 1, 0.5)


class Lane(NamedTuple):
    """One estimate on its way: its context, the keys of its draws, and how far its epochs are."""

    xi: Xi
    key_y: Key
    key_v: Key
    y: Iterating


def start(key: Key, problem: Problem, x: X, loops: DoubleLoop) -> Lane:
    """Algorithm 3, line 1: a context; and the epochs that every level needs."""
    key_xi, _, key_y, key_v = random.split(key, 4)
    xi, lower, k0 = problem.context(key_xi), loops.solver(problem), loops.base_level
    run = lower.begin(key_y, problem, x, xi, k0)
    return Lane(xi, key_y, key_v, lower.go_on(run, key_y, problem, x, xi, k0, k0))


def climb(k: Count, lane: Lane, problem: Problem, x: X, top: Count | None, loops: DoubleLoop) -> Lane:
    """Algorithm 3, lines 2-3: the other epochs up to k, which leave y_1^0, y_k^0 and y_{k+1}^0."""
    last, own = (k, None) if top is None else (top, k)
    run = loops.solver(problem).go_on(lane.y, lane.key_y, problem, x, lane.xi, loops.base_level + 1, last, own)
    return lane._replace(y=run)


def finish(k: Count, lane: Lane, problem: Problem, x: X, loops: DoubleLoop, p: np.ndarray) -> Estimate:
    """Algorithm 3, lines 4-5: v^1 + (v^{k+1} - v^k) / p_k.

    The terms share one draw of eta', eta'' and (eta_n): that coupling is what makes the difference small. At the base
    level v^k is v^1, so that two are enough.
    """
    y = loops.solver(problem).iterates(lane.y)
    points = jax.tree.map(lambda *leaves: jnp.stack(leaves), y.first, y.last, y.prev)
    at_base = jnp.asarray(k) == loops.base_level
    v, v_cost = loops.gradients(lane.key_v, problem, x, points, 3 - at_base.astype(jnp.int32), lane.xi)
    v_first, v_last, v_prev = (jax.tree.map(lambda a: a[i], v) for i in range(3))  # noqa: B023 (used at once)
    v_prev = tree.where(at_base, v_first, v_prev)

    weight = 1 / jnp.asarray(p, dtype=float)[k - loops.base_level]
    grad = trees.add_scale(v_first, weight, tree.sub(v_last, v_prev))
    cost = Cost(xi=1) + y.cost + v_cost
    return Estimate(grad, cost, {"level": jnp.asarray(k, jnp.int32)})


def levels_of(loops: DoubleLoop) -> Levels:
    """Levels base_level..K."""
    p = level_probabilities(loops.K, loops.base_level)
    return Levels(
        first=loops.base_level,
        probabilities=tuple(p.tolist()),
        start=partial(start, loops=loops),
        climb=partial(climb, loops=loops),
        finish=partial(finish, loops=loops, p=p),
    )


def at_level(k: Count, key: Key, problem: Problem, x: X, **settings: Any) -> Estimate:
    """The estimate at level k (Algorithm 3 with k-hat = k). ``settings`` are those of `rt_mlmc`.

    Draws are addressed, not consumed, so sum_k p_k at_level(k, key) equals `dl_sgd(K)` at the
    same key, exactly.
    """
    return levels_of(DoubleLoop(**settings)).at_level(k, key, problem, x)


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
    loops = DoubleLoop(K, lower, inverse, batch, base_level).checked("rt_mlmc")
    levels = levels_of(loops)
    return stateless(levels.estimate, levels, loops, contexts=first_of_split(4), generic=True)
