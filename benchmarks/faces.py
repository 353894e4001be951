"""Bias of projected `dl_sgd`, and so of `rt_mlmc`, against K: near faces of the follower's set and away from them.

y* = P(x + xi) on [0, 1] with noise in g, f = (y - 2)^2 / 2: the gradient is 1{0 < x + xi < 1} (x + xi - 2). Contexts
are one point at some distance from the face y = 1, or continuous. Biases are means over lanes, with standard errors;
continuous contexts share their draws with the exact gradient of each, which takes their own noise away.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import publish
from jax import lax, random

import bilevelax as bx
from bilevelax.base.compiling import program

NOISE, GOAL = 1.0, 2.0
DEPTHS = (2, 3, 4, 5, 6, 7, 8)
CASES = {  # (x + xi at its middle, spread of contexts)
    "inside, 0.5 from the face": (0.5, 0.0),
    "inside, 0.1 from it": (0.9, 0.0),
    "held, 0.1 beyond it": (1.1, 0.0),
    "held, 0.5 beyond it": (1.5, 0.0),
    "continuous contexts around it": (1.0, 0.5),
}


def problem() -> bx.Problem:
    return bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - GOAL) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - x - xi - eta) ** 2) / 2,
        sample_context=lambda key, data: data * random.normal(key, (1,), float),
        sample_conditional=lambda key, xi, data: NOISE * random.normal(key, (1,), float),
        init_y=lambda x, xi: jnp.full(1, 0.5),
        constraint=bx.box(0.0, 1.0),
        data=jnp.zeros(()),
        mu_g=1.0,
        L_g1=1.0,
    )


def gradient(u: jax.Array) -> jax.Array:
    """Of a context whose follower would answer u if it were free."""
    return jnp.where((u > 0) & (u < 1), u - GOAL, 0.0)


def biases(made: bx.Problem, K: int, lanes: int) -> dict[str, tuple[float, float]]:
    """(bias, standard error) of each case: one program for all."""
    estimator = bx.dl_sgd(K, inverse=bx.dense(1))

    def one(key: Any, x: jax.Array, spread: jax.Array) -> jax.Array:
        assert estimator.contexts is not None
        here = made.replace(data=spread)
        xi = here.context(estimator.contexts(key)[0])
        return (estimator.estimate(key, here, x[None], ())[0].grad - gradient(x[None] + xi))[0]

    @program()
    def off(x: jax.Array, spread: jax.Array) -> jax.Array:
        key = random.key(K)
        return lax.map(lambda i: one(random.fold_in(key, i), x, spread), jnp.arange(lanes), batch_size=1000)

    found = {}
    for name, (x, spread) in CASES.items():
        errors = np.asarray(off(jnp.asarray(x), jnp.asarray(spread)))
        found[name] = float(errors.mean()), float(errors.std() / np.sqrt(lanes))
    return found


def slope(depths: tuple[int, ...], found: list[tuple[float, float]]) -> str:
    """Of log2 |bias| in K, by those that are three standard errors from zero; weights by their certainty."""
    kept = [(K, abs(bias), error) for K, (bias, error) in zip(depths, found, strict=True) if abs(bias) > 3 * error]
    if len(kept) < 3:
        return "not told from zero"
    K, bias, error = map(np.asarray, zip(*kept, strict=True))
    fit, covariance = np.polyfit(K, np.log2(bias), 1, w=bias / error, cov="unscaled")
    return f"{fit[0]:.2f} +- {2 * np.sqrt(covariance[0, 0]) / np.log(2):.2f}"


def run(quick: bool = False) -> None:
    jax.config.update("jax_enable_x64", True)
    started, made = time.process_time(), problem()
    depths, lanes = (DEPTHS[:3], 2_000) if quick else (DEPTHS, 40_000)
    found = [biases(made, K, lanes) for K in depths]
    rows = []
    for name in CASES:
        seen = [each[name] for each in found]
        told = {f"K = {K}": f"{bias:.4f} +- {2 * error:.4f}" for K, (bias, error) in zip(depths, seen, strict=True)}
        rows.append({"context": name, **told, "slope": slope(depths, seen)})
    took = f"{time.process_time() - started:.0f} CPU s, {lanes} estimates each, two standard errors."
    publish("faces", "Bias of projected dl_sgd and rt_mlmc against K", rows, [took])


if __name__ == "__main__":
    run()
