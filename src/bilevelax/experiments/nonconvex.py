r"""RT-MLMC as SGD on plain stochastic nonconvex optimization (the Remark after Theorem 1).

Robust regression with the Geman-McClure loss, nonconvex in x:

.. math::
    f(x; a, b) = \frac{r^2}{1 + r^2}, \quad r = a^T x - b, \quad a \sim N(0, I), \; b = a^T w + N(0, 1/4)

r is normal with variance s = |x - w|^2 + 1/4, so grad F = 2 phi'(s) (x - w) with
phi'(s) = E z^2 / (1 + s z^2)^2, a one-dimensional integral.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.estimate import Cost, Estimate, Estimator, stateless
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _stationarity as stationarity
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row, Table
from bilevelax.problem import Key, Problem, X
from bilevelax.special_cases import stochastic

CONFIG = Config(
    title="RT-MLMC on stochastic nonconvex optimization is SGD",
    place="Remark after Theorem 1: the bounds match the lower bound eps^-4 of stochastic nonconvex optimization",
    duration="about a minute",
    scales={
        "smoke": {"seeds": 2, "eps": [0.14, 0.1], "d": 3, "c": 0.5, "horizon": 0.5, "K": 3},
        "quick": {"seeds": 8, "eps": [0.14, 0.1, 0.07], "d": 10, "c": 0.15, "horizon": 2.5, "K": 6},
        "full": {"seeds": 8, "eps": [0.14, 0.1, 0.07, 0.05], "d": 10, "c": 0.15, "horizon": 2.5, "K": 6},
    },
)
NOISE = 0.5
METHODS = ("RT-MLMC", "SGD")


def make(d: int) -> tuple[Problem, X, Any]:
    """(problem, x_1, grad F); w = (1, ..., 1)/sqrt(d) and x_1 = 0."""
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

    return stochastic(loss, sample), jnp.zeros(d, float), grad_F


def plain_sgd() -> Estimator:
    """grad f at one sample: what SGD uses, written without any of the bilevel parts."""

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        xi = problem.context(random.split(key, 4)[0])
        return Estimate(problem.grad_f(x, jnp.zeros(()), (), xi)[0], Cost(xi=1, grad_f=1), {})

    return stateless(estimate)


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    problem, x1, grad_F = make(settings["d"])
    square = stationarity.square_of(grad_F)
    estimators = {"RT-MLMC": rt_mlmc(settings["K"]), "SGD": plain_sgd()}
    for eps in settings["eps"]:
        for method in METHODS:

            def work(eps: float = eps, method: str = method) -> list[Row]:
                return stationarity.measure(
                    problem,
                    estimators[method],
                    x1,
                    square,
                    eps=eps,
                    c=settings["c"],
                    horizon=settings["horizon"],
                    seeds=seeds,
                    together=True,
                    method=method,
                )

            yield Cell(f"{method}, eps = {eps:g}", work)


def totals(records: Records) -> dict[str, stationarity.Totals]:
    return {method: stationarity.Totals(records.where(method=method)) for method in METHODS}


def largest_difference(records: Records) -> float:
    """Between the running means of |grad F|^2 of both methods, over all seeds, steps and eps."""
    found = totals(records)
    return float(np.abs(found["RT-MLMC"].curves - found["SGD"].curves).max())


def render(records: Records, out: Path) -> Rendered:
    found = totals(records)
    figure, axes = figures.panels(2)
    rt, sgd = found["RT-MLMC"], found["SGD"]
    for i, eps in enumerate(rt.eps):
        t = rt.every[i] * np.arange(1, rt.curves.shape[2] + 1)
        axes[0].set(xscale="log", yscale="log")
        figures.band(axes[0], t, rt.curves[:, i], "RT-MLMC", "RT-MLMC" if i == 0 else "")
        axes[0].plot(
            t, sgd.curves[:, i].mean(0), color=figures.colour("SGD"), linestyle="dotted", label="SGD" if i == 0 else ""
        )
        axes[0].axhline(eps**2, color="black", linewidth=0.6, linestyle="dashed")
    axes[0].set(xlabel="outer steps T", ylabel=r"$E|\nabla F(\hat x_T)|^2$", title="running mean, one curve per eps")
    axes[0].legend(frameon=False)
    axes[1].set(xscale="log", yscale="log", xlabel="eps", ylabel="samples of xi", title="samples to eps-stationarity")
    figures.points(axes[1], rt.eps, rt.calls("xi"), "RT-MLMC", markersize=6)
    figures.points(axes[1], sgd.eps, sgd.calls("xi"), "SGD", linestyle="dotted")
    first = rt.calls("xi")[0].value
    figures.reference(axes[1], rt.eps, [first * (e / rt.eps[0]) ** -4 for e in rt.eps], "slope -4 (bound)")
    figures.ticks(axes[1], rt.eps)
    axes[1].legend(frameon=False)
    path = figures.save(figure, out, "nonconvex")
    rows = [
        (method, f"{eps:g}", str(T), str(xi), f"{t.per_step['grad_f'][i]:g}")
        for method, t in found.items()
        for i, (eps, T, xi) in enumerate(zip(t.eps, t.steps(), t.calls("xi"), strict=True))
    ]
    table = Table(
        "Steps and samples to eps-stationarity",
        ("method", "eps", "steps", "samples of xi", "gradients of f per step"),
        rows,
    )
    caption = "RT-MLMC and SGD on robust regression: their curves coincide; samples of xi against eps."
    return Rendered([(path, caption)], [table])


def claims(records: Records) -> list[Claim]:
    found, seeds = totals(records), records.settings["seeds"]
    power = found["RT-MLMC"].exponent("xi")
    same = largest_difference(records)
    return [
        Claim(
            "On plain stochastic nonconvex optimization RT-MLMC is SGD",
            "the same bounds",
            f"largest difference of the two methods' |grad F|^2 over all seeds, steps and eps: {same:g}",
            seeds,
            Claim.judge(same == 0),
            "With a frozen lower level v^{k+1} = v^k, so v^1 remains: the stochastic gradient. As written it evaluates "
            "that gradient three times a step.",
        ),
        Claim(
            "Its sample complexity matches the lower bound eps^-4",
            "-4",
            f"exponent {power}",
            seeds,
            Claim.judge(power.low >= -4.4 and power.high <= -3.6, power.low >= -5),
            "Constant step eps^2 and a uniform iterate, as in the theorem; |grad F|^2 known exactly at every step.",
        ),
    ]
