"""RT-MLMC and plain multilevel Monte Carlo on conditional stochastic optimization.

Invariant logistic regression: an image a is seen in noisy copies eta ~ N(a, I), and the loss is that of their mean
score; so grad F is that of logistic regression on the images. RT-MLMC with EpochSGD as for any bilevel problem, and on
sample means; MLMC averages 2^(K-k) means at each level k in every step, whose step size is as many times larger.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax_paper import stationarity
from bilevelax_paper.claims import Found, claims_of, rule
from bilevelax_paper.item import Cell, Config, Drawn, Records
from bilevelax_paper.stationarity import BEYOND, COUNTS, Known, theorem_K

CONFIG = Config.read(__file__)
D = 2
METHODS = ("RT-MLMC", "RT-MLMC, sample means", "MLMC")


def make(images: int) -> Known:
    """Images around +-(1, 1/2) and their labels, some of them wrong; x_1 = (-1, 1)."""
    rng = np.random.default_rng(0)
    b = np.where(rng.random(images) < 0.5, -1.0, 1.0)
    a = rng.normal(size=(images, D)) + b[:, None] * np.array([1.0, 0.5])

    def grad_F(x: jax.Array) -> jax.Array:
        rows, labels = jnp.asarray(a, x.dtype), jnp.asarray(b, x.dtype)
        weights = -2 * labels * jax.nn.sigmoid(-labels * (rows @ x))
        return weights @ rows / images + x / 10

    problem = bx.conditional_stochastic(
        phi=lambda x, y, xi: 2 * jax.nn.softplus(-xi[1] * y) + jnp.sum(x**2) / 20,
        h=lambda x, eta, xi: eta @ x,
        sample_context=lambda key, data: jax.tree.map(lambda rows: rows[random.randint(key, (), 0, images)], data),
        sample_conditional=lambda key, xi, data: xi[0] + random.normal(key, (D,), float),
        data=(jnp.asarray(a, float), jnp.asarray(b, float)),
    )
    return Known(problem, jnp.asarray([-1.0, 1.0], float), stationarity.square_of(grad_F))


def makers() -> dict[str, stationarity.Maker]:
    """The methods with the theorem's K; equal K share a program."""
    steps = bx.epoch_sgd(1.0)
    made: dict[str, Callable[[int], tuple[bx.Estimator, int]]] = {
        "RT-MLMC": lambda K: (bx.rt_mlmc(K, lower=steps), 1),
        "RT-MLMC, sample means": lambda K: (bx.rt_mlmc(K), 1),
        "MLMC": lambda K: (bx.minibatch(bx.rt_mlmc(K), 2**K - 1), 2**K - 1),
    }
    kept = {name: functools.cache(make) for name, make in made.items()}
    return {name: lambda eps, make=make: make(theorem_K(eps)) for name, make in kept.items()}  # type: ignore[misc]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    return stationarity.cells(make(settings["images"]), makers(), settings, seeds)


def render(records: Records) -> Drawn:
    return stationarity.drawn(stationarity.totals(records, METHODS), ("eta", "xi"))


def complexity(records: Records) -> Found:
    """Exponents, and how many samples more than MLMC at the smallest eps."""
    found = stationarity.totals(records, METHODS)
    power = lambda kind: {name: total.exponent(kind) for name, total in found.items()}
    rt = found["RT-MLMC"]
    lines: Any = {BEYOND: rt.beyond(-4, None, [theorem_K(eps) for eps in rt.eps])}
    lines |= {f"exponent of eps, {COUNTS[kind]}": power(kind) for kind in ("eta", "xi")}
    last = {name: total.calls("eta")[-1].value for name, total in found.items()}
    times = {name: f"{last[name] / last['MLMC']:.2g}" for name in METHODS}
    return Found(lines, words={"rt": times["RT-MLMC"], "means": times["RT-MLMC, sample means"]})


RULE = rule(lambda beyond, rt, means, mlmc, *xi: abs(rt.value - mlmc.value) <= 0.5)
CLAIMS = claims_of(CONFIG, {complexity: RULE})
