"""Wasserstein DRO with side information, eq. (10)-(11): a newsvendor whose contexts an adversary moves.

.. math::
    \\min_x E_\\xi \\max_y E_{\\eta|\\xi} [ l_\\beta(\\pi_x(y), \\eta) - \\lambda |y - \\xi|^2 ], \\quad
    l(w, \\eta) = h (w - \\eta)^+ + b (\\eta - w)^+

Data as in the paper: xi uniform on [-15, 15]^100, eta = 10 sigmoid(3-layer ReLU network of xi) +
N(0, 1), M contexts with m demands each. One deviation: the paper draws the network's weights by
`torch.nn.init.uniform_`, whose range [0, 1] saturates the sigmoid and makes demand constant; here
they are U(-1/sqrt(fan_in), 1/sqrt(fan_in)). The paper gives no layer widths, h or b.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.applications import Application, _formulations
from bilevelax.applications._newsvendor import (
    SMOOTHING,
    loss,
    network,
    nonlinearity,
    oracle_cost,
    require_costs,
    smooth_loss,
)
from bilevelax.curvature import curvature, extreme_eigenvalues
from bilevelax.errors import require_choice, require_integer, require_positive
from bilevelax.problem import Key, Problem, X

MARGIN = 2.0  # by which constants seen at x1 are widened
FAR = 1e4  # a demand at which one side of the loss has its full slope
CHUNK = 10_000  # test points made and paid at once
INNER = 0.3  # first step of the inner Adam, in units of `typical_step`
TRUTH = (64, 32)  # hidden widths of the network behind demand


class Market(NamedTuple):
    """Where contexts and demands come from, and what a wrong order costs."""

    truth: Any  # a network
    d: int
    scale: float
    h: float
    b: float

    def contexts(self, key: Key, n: int) -> jax.Array:
        return random.uniform(key, (n, self.d), float, -self.scale, self.scale)

    def means(self, contexts: jax.Array) -> jax.Array:
        """The mean demand of each context."""
        return 10 * jax.nn.sigmoid(jax.vmap(self.truth)(contexts))

    def demands(self, key: Key, contexts: jax.Array, m: int) -> jax.Array:
        """m demands for each context."""
        means = self.means(contexts)
        return means[:, None] + random.normal(key, (len(contexts), m), means.dtype)


@eqx.filter_jit
def fresh_cost(rule: Any, market: Market, key: Key, points: int) -> jax.Array:
    """Mean unsmoothed loss on fresh pairs (xi, eta), made in chunks: no test set is stored."""
    chunks = -(-points // CHUNK)

    def one(i: jax.Array) -> jax.Array:
        key_xi, key_eta = random.split(random.fold_in(key, i))
        contexts = market.contexts(key_xi, -(-points // chunks))
        demands = market.demands(key_eta, contexts, 1)[:, 0]
        return loss(jax.vmap(rule)(contexts), demands, market.h, market.b).mean()

    return lax.map(one, jnp.arange(chunks)).mean()


@eqx.filter_jit
def stored_cost(rule: Any, market: Market, data: Any) -> jax.Array:
    """Mean unsmoothed loss on the stored pairs."""
    return loss(jax.vmap(rule)(data.contexts)[:, None], data.outcomes, market.h, market.b).mean()


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
        return extreme_eigenvalues(product, random.normal(key_r, y.shape, y.dtype), 20)

    i, shift = jnp.meshgrid(jnp.arange(points, dtype=jnp.int32), jnp.array([0.0, -FAR, FAR]))
    seen = jax.jit(jax.vmap(one, in_axes=(0, 0, None, None)))(i.ravel(), shift.ravel(), problem, x)
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


def metrics_of(
    rule: Callable[[X], Any],
    market: Market,
    data: Any,
    key: Key,
    test_points: int,
    look: Callable[[X], dict[str, float]],
    lam: float,
) -> Callable[[X], dict[str, float]]:
    told = False

    def metrics(x: X) -> dict[str, float]:
        nonlocal told
        row = look(x)
        told = told or (bool(row) and warn_of(lam, row))
        return {
            "test_cost": float(fresh_cost(rule(x), market, key, test_points)),
            "train_cost": float(stored_cost(rule(x), market, data)),
            "oracle_cost": oracle_cost(market.h, market.b),
            **row,
        }

    return metrics


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
    _check(lam, formulation, rule, M, m, scale, T_in, inner_rate, test_points)
    require_costs("wdro_si", h, b, beta)
    key_truth, key_xi, key_eta, key_x, key_test, key_look = (random.fold_in(random.key(seed), i) for i in range(6))
    market = Market(network(d, TRUTH, jax.nn.relu, key_truth, "wdro_si"), d, scale, h, b)
    contexts = market.contexts(key_xi, M)
    hidden = tuple(widths) if rule == "mlp" else ()
    model = network(d, hidden, nonlinearity(activation, "wdro_si", beta), key_x, "wdro_si")
    x1, static = eqx.partition(model, eqx.is_inexact_array)
    policy = lambda x: eqx.combine(x, static)
    order = lambda x, xi: policy(x)(xi)
    cost = lambda x, xi, eta: smooth_loss(order(x, xi), eta, h, b, beta)

    robust = _formulations.wdro_si(cost, contexts, market.demands(key_eta, contexts, m), lam, danskin)
    data = robust.data
    look: Callable[[X], dict[str, float]] = lambda x: {}
    if formulation == "erm":
        problem = _formulations.erm(cost, data)
    else:
        known = mu_g is not None and L_g1 is not None
        seen = (0.0, 0.0) if known else constants(robust, x1, order, lam, key_look)
        problem = with_constants(robust, seen, mu_g, L_g1)
        if formulation == "wdro":
            inner_rate = inner_rate or INNER * _formulations.typical_step(robust, x1, lam, key_look)
            problem = _formulations.wdro(problem, T_in, inner_rate)
        look = lambda x: monitor(problem, x, lam, key=key_look)
    return Application(problem, x1, metrics_of(policy, market, data, key_test, test_points, look, lam))


def _check(
    lam: float,
    formulation: str,
    rule: str,
    M: int,
    m: int,
    scale: float,
    T_in: int,
    inner_rate: float | None,
    test_points: int,
) -> None:
    for name, value in (("lam", lam), ("scale", scale), ("inner_rate", inner_rate)):
        require_positive(name, "wdro_si", value)
    for name, count in (("M", M), ("m", m), ("T_in", T_in), ("test_points", test_points)):
        require_integer(name, "wdro_si", count, 1)
    require_choice("formulation", "wdro_si", formulation, ("wdro_si", "wdro", "erm"))
    require_choice("rule", "wdro_si", rule, ("mlp", "affine"))
