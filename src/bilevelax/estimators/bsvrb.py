"""BSVRB: blockwise variance reduction for finitely many contexts, with a table of followers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.base.errors import (
    require_choice,
    require_integer,
    require_positive,
    require_share,
    require_unconstrained,
)
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Estimate, Estimator
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.estimators._blocks import (
    Adjoints,
    Point,
    by_adjoints,
    by_hessians,
    clip_rows,
    draw_blocks,
    extrapolation,
    tracker,
)
from bilevelax.exact.context_rows import Step, check_step, put, step_at, table_of_starts, take
from bilevelax.problems.factor import one, with_factor


class Bsvrb(NamedTuple):
    """The arguments of `bsvrb`."""

    version: int
    blocks: int
    batch: int
    a: float
    b: float | Callable[[Any], Any]
    c: float | None
    tau: Step
    tau_v: Step
    R: float | None
    mu: float | None
    largest: int


class BsvrbState(NamedTuple):
    """What the next step needs. Tables have M rows, each a y."""

    t: jax.Array
    x_prev: X
    w: X  # STORM direction
    y: Y  # table
    y_prev: Y  # table
    s: Y  # table: trackers of grad_2 g_i
    seen: jax.Array  # whether block i was ever sampled
    memory: Any  # Adjoints, or in version 1 the table of Hessians (M, d_y, d_y)


def first_state(problem: Problem, x: X, settings: Bsvrb) -> BsvrbState:
    require_unconstrained("bsvrb", problem)
    y = table_of_starts("bsvrb", problem, x)
    M, zeros = problem.n_contexts, tree.zeros_like(y)
    memory: Any = Adjoints(zeros, zeros, zeros)
    if settings.version == 1:
        flat = ravel_pytree(take(y, 0))[0]
        refuse_large(M, flat, settings.largest)
        memory = jnp.zeros((M, flat.size, flat.size), flat.dtype)
    return BsvrbState(jnp.zeros((), jnp.int32), x, tree.zeros_like(x), y, y, zeros, jnp.zeros(M, bool), memory)


def refuse_large(M: Any, flat: jax.Array, largest: int) -> None:
    d_y = flat.size
    if d_y > largest:
        gigabytes = M * d_y**2 * flat.dtype.itemsize / 1e9
        raise ValueError(
            f"`version` 1 of bsvrb keeps a d_y x d_y Hessian for each context, for d_y <= `largest` = {largest}. "
            f"Got d_y = {d_y} and {M} contexts: {gigabytes:.3g} GB. Use version=2, which keeps vectors only."
        )


def curvature(problem: Problem, mu: float | None) -> float:
    mu = problem.mu_g if mu is None else mu
    if mu is None:
        raise ValueError(
            "`mu` of bsvrb must be given where the problem does not know mu_g: version 1 keeps H_i >= mu I. "
            "Give mu, or set Problem(..., mu_g=...)."
        )
    return mu


def storm(w: X, G_before: X, G_now: X, keep: jax.Array) -> X:
    """keep (w - G(z^{t-1})) + G(z^t)."""
    return jax.tree.map(lambda w, old, new: keep.astype(w.dtype) * (w - old) + new, w, G_before, G_now)


def advance(key: Key, problem: Problem, x: X, state: BsvrbState, settings: Bsvrb) -> tuple[Estimate, BsvrbState]:
    """One step of BSVRB. The optimizer has moved x since ``state`` was made."""
    M = problem.n_contexts or 0  # None has been refused by first_state
    n = min(settings.blocks, M)
    c = extrapolation(settings.a, n, M) if settings.c is None else settings.c
    size = lambda name, step: step_at(name, "bsvrb", step, state.t, problem, lambda L, t: 1 / ((1 + c) * L))
    problem = problem.averaged(settings.batch)
    blocks = draw_blocks(key, problem, M, n)
    memory: Any
    seen = state.seen[blocks.rows]
    track = tracker(seen, settings.a, c)
    now, before = Point(x, take(state.y, blocks.rows)), Point(state.x_prev, take(state.y_prev, blocks.rows))
    told, (here, there) = with_factor(problem), (Point(one(z.x), z.y) for z in (now, before))

    slope = lambda z: jax.vmap(problem.grad_g, in_axes=(None, 0, 0, 0))(z.x, z.y, blocks.eta_g, blocks.xi)
    s = put(state.s, blocks.rows, track(take(state.s, blocks.rows), slope(now), slope(before)))
    y = trees.add_scale(state.y, -size("tau", settings.tau), s)
    if settings.version == 1:
        mu = curvature(problem, settings.mu)
        G_now, G_before, memory = by_hessians(told, blocks, here, there, state.memory, track, mu, seen)
        products = 2 * memory.shape[-1]
    else:
        move = lambda v, u: clip_rows(trees.add_scale(v, -size("tau_v", settings.tau_v), u), settings.R)
        G_now, G_before, memory = by_adjoints(told, blocks, here, there, state.memory, track, move)
        products = 2

    b = settings.b(state.t) if callable(settings.b) else settings.b
    w = storm(state.w, G_before[0], G_now[0], jnp.where(state.t == 0, 0.0, 1.0 - b))
    cost = Cost(eta=3, grad_f=2, grad_g=2, hess_g=products, cross_g=2).times(settings.batch) + Cost(xi=1)
    state = BsvrbState(state.t + 1, x, w, y, state.y, s, state.seen.at[blocks.rows].set(True), memory)
    return Estimate(w, cost.times(n), {"F": G_now[1]}), state


def bsvrb(
    version: int = 2,
    blocks: int = 10,
    batch: int = 1,
    a: float = 0.5,
    b: float | Callable[[Any], Any] = 0.5,
    c: float | None = None,
    tau: Step = None,
    tau_v: Step = None,
    R: float | None = None,
    mu: float | None = None,
    largest: int = 512,
) -> Estimator:
    r"""BSVRB for problems with finitely many contexts i = 1..M (Hu et al., ICML 2023, arXiv 2305.18730).

    A step samples I ``blocks`` without replacement and evaluates them on the same data at
    z^t = (x^t, y^t) and at z^{t-1}. With MSVR trackers s_i of :math:`\nabla_2 g_i`,

    .. math::
        G(z) = \frac1I \sum_{i \in S} \nabla_1 f_i - \nabla^2_{12} g_i \, r_i, \quad
        w \leftarrow (1-b)(w - G(z^{t-1})) + G(z^t), \quad y_i \leftarrow y_i - \tau s_i \text{ for all } i

    A tracker starts at its first sample; only those of sampled blocks change. Memory and time per
    step grow with M: this is no method for infinitely many contexts.

    The estimate is w (STORM); the optimizer, plain `optax.sgd` in the method, moves x. Version 2
    has :math:`r_i = v_i`, moved for all i by :math:`-\tau_v u_i`, u_i the tracker of
    :math:`\nabla^2_{22} g_i v_i - \nabla_2 f_i`: memory 6 M d_y. Version 1 has
    :math:`r_i = H_i^{-1} \nabla_2 f_i`, H_i the tracked Hessian with eigenvalues raised to mu:
    memory M d_y^2 + 3 M d_y, and per step 2 I batch d_y Hessian products and I eigendecompositions.
    At d_y = 5120 (softmax regression of 10 classes on 512 features, float32, two busy CPU cores)
    one step on one block took 189 s in version 1 and 0.008 s in version 2, and 20 contexts would
    hold 2.1 GB of Hessians: `python benchmarks/bsvrb_hessians.py`.

    Args:
        version: 1 (Hessians, small d_y) or 2 (no matrices).
        blocks: contexts per step, at most all.
        batch: samples of each per draw.
        a: weight of the newest sample in the trackers, between 0 and 1.
        b: STORM's weight of the newest direction, in (0, 1], or an optax schedule.
        c: weight of the change; by default (M-I) / (I (1-a)) + (1-a).
        tau, tau_v: steps of y_i and v_i, numbers or optax schedules; by default
            1 / ((1 + c) L_g1): rows move every step on trackers that wait M/I steps for news.
        R: bound of the norm of v_i; none by default.
        mu: least eigenvalue of H_i; by default mu_g.
        largest: d_y above which version 1 refuses.
    """
    require_choice("version", "bsvrb", version, (1, 2))
    for name, value in {"blocks": blocks, "batch": batch, "largest": largest}.items():
        require_integer(name, "bsvrb", value, 1)
    require_share("a", "bsvrb", a)
    if not callable(b) and not 0 < b <= 1:
        raise ValueError(f"`b` of bsvrb must lie in (0, 1] or be an optax schedule. Got {b!r}.")
    for name, positive in {"c": c, "R": R, "mu": mu}.items():
        require_positive(name, "bsvrb", positive, optional=True, infinite=name == "R")
    check_step("tau", "bsvrb", tau)
    check_step("tau_v", "bsvrb", tau_v)
    settings = Bsvrb(version, blocks, batch, a, b, c, tau, tau_v, R, mu, largest)
    return Estimator(partial(first_state, settings=settings), partial(advance, settings=settings))
