"""Wasserstein DRO with side information, eq. (10)-(11): a newsvendor whose contexts an adversary moves.

.. math::
    \\min_x E_\\xi \\max_y E_{\\eta|\\xi} [ l_\\beta(\\pi_x(y), \\eta) - \\lambda |y - \\xi|^2 ], \\quad
    l(w, \\eta) = h (w - \\eta)^+ + b (\\eta - w)^+

Data as in the paper (`bilevelax.applications.newsvendor.market`): M contexts with m demands each.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random

from bilevelax.applications import Application
from bilevelax.applications.newsvendor import formulations
from bilevelax.applications.newsvendor.loss import SMOOTHING, oracle_cost, require_costs, smooth_loss
from bilevelax.applications.newsvendor.market import fresh_cost, market_of, stored_cost
from bilevelax.applications.newsvendor.policies import network, nonlinearity
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core.problem import Key, Problem, X
from bilevelax.exact.curvature import curvature, extreme_curvatures

MARGIN = 2.0  # by which constants seen at x1 are widened
FAR = 1e4  # a demand at which one side of the loss has its full slope
INNER = 0.3  # first step of the inner Adam, in units of `typical_step`


def constants(problem: Problem, x: X, order: Any, lam: float, key: Key, points: int = 128) -> tuple[float, float]:
    """(mu_g, L_g1) from per-sample Hessians at x, whose distance from 2 lam is widened by `MARGIN`.

    Looked at in the contexts and around them, for the demands at which the loss bends most
    (the order itself) and slopes most (far above, far below). mu_g <= 0: lam is too small.
    """
    M = problem.n_contexts or 1

    def one(i: jax.Array, shift: jax.Array, problem: Problem, x: X) -> jax.Array:
        key_y, key_r = random.split(random.fold_in(key, i))
        xi = problem.nth_context(i % M)
        y = problem.start(x, xi)
        y = y + (i >= M).astype(y.dtype) * random.normal(key_y, y.shape, y.dtype)
        product = lambda r: problem.hess_g(x, y, order(x, y) + shift, xi, r)
        return extreme_curvatures(product, y, key_r, 20)

    i, shift = jnp.meshgrid(jnp.arange(points, dtype=jnp.int32), jnp.array([0.0, -FAR, FAR]))
    seen = program()(jax.vmap(one, in_axes=(0, 0, None, None)))(i.ravel(), shift.ravel(), problem, x)
    low, high = min(float(seen.min()), 2 * lam), max(float(seen.max()), 2 * lam)
    return 2 * lam - MARGIN * (2 * lam - low), 2 * lam + MARGIN * (high - 2 * lam)


def with_constants(problem: Problem, seen: tuple[float, float], mu_g: float | None, L_g1: float | None) -> Problem:
    """The given constants, else those seen; no mu_g where that is not positive."""
    low = (seen[0] if seen[0] > 0 else None) if mu_g is None else mu_g
    return dataclasses.replace(problem, mu_g=low, L_g1=seen[1] if L_g1 is None else L_g1)


def monitor(problem: Problem, x: X, lam: float, *, key: Key, contexts: int = 64) -> dict[str, float]:
    """``min_curvature`` of the adversary's problem at x, and ``enough_lam`` from which it is convex.

    The Hessian is 2 lam I less that of the expected loss, so the latter is lam - min_curvature / 2.
    """
    smallest = curvature(problem, x, key=key, contexts=contexts).smallest
    return {"min_curvature": smallest, "enough_lam": lam - smallest / 2}


def warn_of(lam: float, row: dict[str, float]) -> bool:
    """Warn where the adversary's problem is not strongly convex; True if so."""
    if row["min_curvature"] > 0:
        return False
    warnings.warn(
        f"`lam` of wdro_si is {lam:g}, too small at this x: the lower level has curvature {row['min_curvature']:.3g} "
        f"and is not strongly convex; lam > {row['enough_lam']:.3g} would do.",
        stacklevel=3,
    )
    return True


SMALLEST = {"M": 2, "m": 2, "d": 2, "widths": (2,), "lam": 10.0, "test_points": 10}  # for the contract tests


def make(
    lam: float = 1.0,
    formulation: str = "wdro_si",
    danskin: bool = True,
    rule: str = "mlp",
    widths: tuple[int, ...] = (64, 32),
    activation: str = "softplus",
    M: int = 50,
    m: int = 100,
    d: int = 100,
    scale: float = 15.0,
    h: float = 1.0,
    b: float = 3.0,
    beta: float = SMOOTHING,
    mu_g: float | None = None,
    L_g1: float | None = None,
    T_in: int = 30,
    inner_rate: float | None = None,
    test_points: int = 200_000,
    seed: int = 0,
) -> Application:
    """The feature-based newsvendor with side information.

    Metrics, all with the unsmoothed loss: ``test_cost`` on fresh pairs (xi, eta), ``train_cost``
    on the stored ones, ``oracle_cost`` of who knows the law of demand; and, where there is an
    adversary, ``min_curvature`` of its problem over contexts with ``enough_lam``, the lam
    above which that is positive. A warning says so when it is not.

    Args:
        lam: price of moving a context; the paper's grid is 1, 10, 50, 100, 150.
        formulation: ``wdro_si``, or the baselines ``wdro`` (the adversary sees the demand;
            Algorithm 5) and ``erm`` (no adversary).
        danskin: leave out the implicit term, which vanishes at y*: cheaper, but its bias is of
            order ``|y - y*|`` instead of ``|y - y*|^2``.
        rule: decision rule, ``mlp`` or ``affine``. x holds its arrays.
        widths: hidden layers of the mlp.
        activation: ``softplus`` (softplus(beta z) / beta), ``tanh``, or ``relu``, which is outside
            the theory: its second derivatives miss the kinks.
        M, m: stored contexts, and demands stored for each.
        d, scale: contexts are uniform on [-scale, scale]^d.
        h, b: holding and backlog cost per unit.
        beta: smoothing of the loss.
        mu_g, L_g1: by default seen at x1, with a margin (`constants`): they hold near x1 only. Where
            lam is too small for a positive mu_g there is none, and ``danskin=False`` needs ``N`` given.
        T_in: inner steps of ``wdro``.
        inner_rate: the first of their sizes; by default 0.3 times the root-mean-square coordinate of
            the way that the adversary wants to go at x1.
        test_points: fresh pairs in ``test_cost``.
        seed: of data, network and first iterate.
    """
    require_costs("wdro_si", h, b, beta)
    counts = {"M": M, "m": m, "T_in": T_in, "test_points": test_points}
    _check(formulation, rule, counts, {"lam": lam, "scale": scale, "inner_rate": inner_rate})
    key_truth, key_xi, key_eta, key_x, key_test, key_look = (random.fold_in(random.key(seed), i) for i in range(6))
    market = market_of(key_truth, d, scale, h, b, "wdro_si")
    contexts = market.contexts(key_xi, M)
    hidden = tuple(widths) if rule == "mlp" else ()
    model = network(d, hidden, nonlinearity(activation, "wdro_si", beta), key_x, "wdro_si")
    x1, static = eqx.partition(model, eqx.is_inexact_array)
    policy = lambda x: eqx.combine(x, static)
    order = lambda x, xi: policy(x)(xi)
    cost = lambda x, xi, eta: smooth_loss(order(x, xi), eta, h, b, beta)

    robust = formulations.wdro_si(cost, contexts, market.demands(key_eta, contexts, m), lam, danskin)
    look: Callable[[X], dict[str, float]] = lambda x: {}
    if formulation == "erm":
        problem = formulations.erm(cost, robust.data)
    else:
        known = mu_g is not None and L_g1 is not None
        seen = (0.0, 0.0) if known else constants(robust, x1, order, lam, key_look)
        problem = with_constants(robust, seen, mu_g, L_g1)
        if formulation == "wdro":
            inner_rate = inner_rate or INNER * formulations.typical_step(robust, x1, lam, key_look)
            problem = formulations.wdro(problem, T_in, inner_rate)
        look = lambda x: monitor(problem, x, lam, key=key_look)
    told = False

    def metrics(x: X) -> dict[str, float]:
        nonlocal told
        row = look(x)
        told = told or (bool(row) and warn_of(lam, row))
        return {
            "test_cost": float(fresh_cost(policy(x), market, key_test, test_points)),
            "train_cost": float(stored_cost(policy(x), market, robust.data)),
            "oracle_cost": oracle_cost(h, b),
            **row,
        }

    return Application(problem, x1, metrics)


def _check(formulation: str, rule: str, counts: dict[str, int], positive: dict[str, float | None]) -> None:
    for name, value in positive.items():
        require_positive(name, "wdro_si", value, optional=name == "inner_rate")
    for name, count in counts.items():
        require_integer(name, "wdro_si", count, 1)
    require_choice("formulation", "wdro_si", formulation, ("wdro_si", "wdro", "erm"))
    require_choice("rule", "wdro_si", rule, ("mlp", "affine"))
