"""RT-MLMC as SGD on plain stochastic nonconvex optimization (the Remark after Theorem 1).

Robust regression, f(x; a, b) = r^2 / (1 + r^2) with r = a'x - b, a ~ N(0, I), b = a'w + N(0, 1/4). r is normal, so
grad F is a one-dimensional integral.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.core.problem import Key, X
from bilevelax_paper import figures, stationarity
from bilevelax_paper.claims import Found, claims_of, rule, where
from bilevelax_paper.item import Cell, Config, Drawn, Records
from bilevelax_paper.stationarity import Known

CONFIG = Config.read(__file__)
NOISE = 0.5
METHODS = ("RT-MLMC", "SGD")


def make(d: int) -> Known:
    """w = (1, ..., 1)/sqrt(d) and x_1 = 0."""
    w = np.ones(d) / np.sqrt(d)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    weights = weights / weights.sum()

    def sample(key: Key, data: tuple[()]) -> tuple[jax.Array, jax.Array]:
        key_a, key_b = random.split(key)
        a = random.normal(key_a, (d,), float)
        return a, a @ jnp.asarray(w, float) + NOISE * random.normal(key_b, (), float)

    def loss(x: jax.Array, xi: tuple[jax.Array, jax.Array]) -> jax.Array:
        square = (xi[0] @ x - xi[1]) ** 2
        return square / (1 + square)

    def grad_F(x: jax.Array) -> jax.Array:
        away = x - jnp.asarray(w, x.dtype)
        z2 = jnp.asarray(nodes**2, x.dtype)
        slope = jnp.asarray(weights, x.dtype) @ (z2 / (1 + (jnp.sum(away**2) + NOISE**2) * z2) ** 2)
        return 2 * slope * away

    return Known(bx.stochastic(loss, sample), jnp.zeros(d, float), stationarity.square_of(grad_F))


def plain_sgd() -> bx.Estimator:
    """grad f at one sample: what SGD uses, written without any of the bilevel parts."""

    def estimate(key: Key, problem: bx.Problem, x: X) -> bx.Estimate:
        xi = problem.context(random.split(key, 4)[0])
        return bx.Estimate(problem.grad_f(x, jnp.zeros(()), (), xi)[0], bx.Cost(xi=1, grad_f=1), {})

    return bx.stateless(estimate)


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    made = {"RT-MLMC": bx.rt_mlmc(settings["K"]), "SGD": plain_sgd()}
    makers: dict[str, Any] = {method: lambda eps, one=one: (one, 1) for method, one in made.items()}
    return stationarity.cells(make(settings["d"]), makers, settings, seeds, together=METHODS)


def render(records: Records) -> Drawn:
    found = stationarity.totals(records, METHODS)
    return stationarity.drawn(found, ("xi",), partial(draw, found))


def draw(found: dict[str, stationarity.Totals], panel: Any) -> None:
    """Running means of |grad F|^2, one curve per eps; SGD dashed upon RT-MLMC."""
    panel.set(**figures.LOG_LOG, xlabel="outer steps T", ylabel=r"$E|\nabla F(\hat x_T)|^2$", title="running means")
    for (method, total), style in zip(found.items(), ("solid", "dashed"), strict=True):
        for i, eps in enumerate(total.eps):
            t = total.every[i] * np.arange(1, total.curves.shape[2] + 1)
            figures.band(panel, t, total.curves[:, i], method, "_" if i else method, linestyle=style)
            panel.axhline(eps**2, color="black", linewidth=0.6, linestyle="dashed")


def difference(records: Records) -> Found:
    """Between the running means of |grad F|^2 of both methods."""
    rt, sgd = stationarity.totals(records, METHODS).values()
    return Found({"largest difference in |grad F|^2": float(np.abs(rt.curves - sgd.curves).max())})


def complexity(records: Records) -> Found:
    found = stationarity.totals(records, METHODS)["RT-MLMC"]
    lines = {"exponent of eps, less the bound's, samples of xi": found.beyond(-4, "xi")}
    return Found({**lines, "exponent of eps, samples of xi": found.exponent("xi")})


NEAR = rule(lambda beyond, power: power.high <= -3.6)
CLAIMS = claims_of(CONFIG, {difference: where(lambda largest: largest == 0), complexity: NEAR})
