r"""RT-MLMC and plain multilevel Monte Carlo on conditional stochastic optimization.

Invariant logistic regression: an image a is seen in noisy copies, and the loss is that of their mean score,

.. math::
    F(x) = E_{a, b}\, 2 \log(1 + \exp(-b\, E_{\eta|a} \eta^T x)) + |x|^2 / 20, \quad \eta | a \sim N(a, I)

E eta = a, so grad F is that of logistic regression on the stored images. Methods:

- RT-MLMC as for any contextual bilevel problem: EpochSGD on |y - eta'x|^2 / 2;
- RT-MLMC on sample means, what the library makes of a CSO;
- MLMC: a fixed number 2^(K-k) of means at each level k, 2^K - 1 in all, in every step, whose
  step size is as many times larger.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.estimate import Estimator
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _stationarity as stationarity
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row, Table
from bilevelax.experiments._table1_problems import Known
from bilevelax.experiments.table1 import theorem_K
from bilevelax.lower import epoch_sgd
from bilevelax.minibatch import minibatch
from bilevelax.special_cases import conditional_stochastic

CONFIG = Config(
    title="RT-MLMC against plain multilevel Monte Carlo on a CSO",
    place="Remark after Theorem 1 (CSO: the bounds of MLMC methods)",
    duration="about 4 minutes",
    scales={
        "smoke": {"seeds": 2, "eps": [0.75, 0.65], "images": 32, "c": 0.15, "horizon": 4.0},
        "quick": {"seeds": 8, "eps": [0.5, 0.354], "images": 128, "c": 0.15, "horizon": 25.0},
        "full": {"seeds": 8, "eps": [0.5, 0.354, 0.25], "images": 128, "c": 0.15, "horizon": 25.0},
    },
)
D = 2
METHODS = {"RT-MLMC": "RT-MLMC", "RT-MLMC, sample means": "antithetic", "MLMC": "MLMC"}  # and whose colour


def make(images: int) -> Known:
    """Images around +-(1, 1/2) and their labels, some of them wrong; x_1 = (-1, 1)."""
    rng = np.random.default_rng(0)
    b = np.where(rng.random(images) < 0.5, -1.0, 1.0)
    a = rng.normal(size=(images, D)) + b[:, None] * np.array([1.0, 0.5])

    def grad_F(x: jax.Array) -> jax.Array:
        rows, labels = jnp.asarray(a, x.dtype), jnp.asarray(b, x.dtype)
        weights = -2 * labels * jax.nn.sigmoid(-labels * (rows @ x))
        return weights @ rows / images + x / 10

    problem = conditional_stochastic(
        phi=lambda x, y, xi: 2 * jax.nn.softplus(-xi[1] * y) + jnp.sum(x**2) / 20,
        h=lambda x, eta, xi: eta @ x,
        sample_context=lambda key, data: jax.tree.map(lambda rows: rows[random.randint(key, (), 0, images)], data),
        sample_conditional=lambda key, xi, data: xi[0] + random.normal(key, (D,), float),
        data=(jnp.asarray(a, float), jnp.asarray(b, float)),
    )
    return Known(problem, jnp.asarray([-1.0, 1.0], float), stationarity.square_of(grad_F))


def estimators() -> dict[str, Callable[[int], tuple[Estimator, int]]]:
    """K -> (estimator, how many estimates it averages)."""
    steps = epoch_sgd(1.0)
    made: dict[str, Callable[[int], tuple[Estimator, int]]] = {
        "RT-MLMC": lambda K: (rt_mlmc(K, lower=steps), 1),
        "RT-MLMC, sample means": lambda K: (rt_mlmc(K), 1),
        "MLMC": lambda K: (minibatch(rt_mlmc(K), 2**K - 1), 2**K - 1),
    }
    return {name: functools.cache(make) for name, make in made.items()}  # equal K share a program


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    known, made = make(settings["images"]), estimators()
    for eps in settings["eps"]:
        for method in METHODS:

            def work(eps: float = eps, method: str = method) -> list[Row]:
                estimator, m = made[method](theorem_K(eps))
                return stationarity.measure(
                    known.problem,
                    estimator,
                    known.x1,
                    known.square,
                    eps=eps,
                    c=settings["c"] * m,
                    horizon=settings["horizon"] / m,
                    seeds=seeds,
                    method=method,
                )

            yield Cell(f"{method}, eps = {eps:g}", work)


def totals(records: Records) -> dict[str, stationarity.Totals]:
    return {method: stationarity.Totals(records.where(method=method)) for method in METHODS}


def render(records: Records, out: Path) -> Rendered:
    found = totals(records)
    figure, axes = figures.panels(2)
    for panel, kind, label in ((axes[0], "eta", "samples of eta"), (axes[1], "xi", "samples of xi")):
        panel.set(xscale="log", yscale="log", xlabel="eps", ylabel=label, title=f"{label} to eps-stationarity")
        for method, total in found.items():
            figures.points(panel, total.eps, total.calls(kind), METHODS[method], method)
        first, eps = found["MLMC"].calls(kind)[0].value, found["MLMC"].eps
        figures.reference(panel, eps, [first * (e / eps[0]) ** -4 for e in eps], "slope -4 (bound)")
        figures.ticks(panel, eps)
        panel.legend(frameon=False, loc="lower left")
    path = figures.save(figure, out, "cso")
    rows = [
        (method, f"{e:g}", str(T), str(xi), str(eta))
        for method, total in found.items()
        for e, T, xi, eta in zip(total.eps, total.steps(), total.calls("xi"), total.calls("eta"), strict=True)
    ]
    caption = "Samples until E|grad F|^2 <= eps^2 on invariant logistic regression."
    columns = ("method", "eps", "steps", "samples of xi", "samples of eta")
    return Rendered([(path, caption)], [Table("Totals to eps-stationarity", columns, rows)])


def claims(records: Records) -> list[Claim]:
    found = totals(records)
    powers = {method: (total.exponent("eta"), total.exponent("xi")) for method, total in found.items()}
    last = {method: total.calls("eta")[-1].value for method, total in found.items()}
    within = all(xi.low >= -4.6 for _, xi in powers.values())
    alike = abs(powers["RT-MLMC"][0].value - powers["MLMC"][0].value) <= 0.5
    return [
        Claim(
            "On a CSO the sample complexity of RT-MLMC matches that of MLMC methods, eps^-4",
            "-4, up to logarithms",
            "; ".join(f"{method}: eta {eta}, xi {xi}" for method, (eta, xi) in powers.items()),
            records.settings["seeds"],
            Claim.judge(within and alike, within),
            "Samples of eta are those of xi times about 2K, the logarithm. At the smallest eps RT-MLMC takes "
            f"{last['RT-MLMC'] / last['MLMC']:.2g} times the samples of eta of MLMC, on sample means "
            f"{last['RT-MLMC, sample means'] / last['MLMC']:.2g} times.",
        )
    ]
