"""How often `check` fails a problem that is right: random problems of four kinds, sizes 1 to 1,000.

Problems of one kind and size differ in their data only, so they share their programs: what is counted is checks, not
compilations. A check is an alarm where one of its rows fails; undecided rows are counted apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import publish
from jax import random

import bilevelax as bx

SETTINGS = {"contexts": 8, "samples": 256, "n": 64, "progress": False}  # few: noisier than the defaults
REPEATS = {1: 120, 10: 120, 100: 40, 1000: 4}  # checks of each kind at a size
Made = tuple[bx.Problem, Callable[[np.random.Generator], tuple[Any, Any]]]  # a problem; data and x drawn


def quadratic(d: int) -> Made:
    """y* = x * scale + xi + E eta, curvatures between 0.5 and 5."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - xi["goal"]) ** 2) / 2 + 0.1 * jnp.sum(x**2),
        g=lambda x, y, eta, xi: jnp.sum(xi["curve"] * (y - xi["scale"] * x - xi["shift"] - eta) ** 2) / 2,
        sample_context=lambda key, data: {**data, "shift": random.normal(key, (d,))},
        sample_conditional=lambda key, xi, data: random.normal(key, (d,)),
        init_y=lambda x, xi: jnp.zeros(d),
    )

    def draw(rng: np.random.Generator) -> tuple[Any, Any]:
        data = {"goal": rng.normal(size=d), "curve": np.exp(rng.uniform(-0.7, 1.6, d)), "scale": rng.normal(size=d)}
        return data, rng.normal(size=d)

    return problem, draw


def softmax(d: int) -> Made:
    """Three classes, d features, a prior x that y stays near."""

    def loss(y: Any, sample: Any) -> Any:
        scores = y @ sample[0]
        return jax.nn.logsumexp(scores) - scores[sample[1]]

    def sample_conditional(key: Any, xi: Any, data: Any) -> Any:
        def one(key: Any) -> Any:
            key_a, key_b = random.split(key)
            a = random.normal(key_a, (d,)) / np.sqrt(d)
            return a, random.categorical(key_b, (data["truth"] + xi) @ a)

        return jax.tree.map(lambda *rows: jnp.stack(rows), *map(one, random.split(key)))

    row = lambda eta, i: jax.tree.map(lambda a: a[i], eta)
    problem = bx.Problem(
        f=lambda x, y, eta, xi: loss(y, row(eta, 1)) + 0.01 * jnp.sum(x**2),
        g=lambda x, y, eta, xi: loss(y, row(eta, 0)) + jnp.sum((y - x) ** 2) / 2,
        sample_context=lambda key, data: random.normal(key, (3, d)),
        sample_conditional=sample_conditional,
        init_y=lambda x, xi: x,
    )
    return problem, lambda rng: ({"truth": 2 * rng.normal(size=(3, d))}, rng.normal(size=(3, d)) / np.sqrt(d))


def newsvendor(d: int) -> Made:
    """d products with smooth costs; x moves what too little costs."""
    cost = lambda y, demand, under: jnp.sum(jax.nn.softplus(y - demand) + under * jax.nn.softplus(demand - y))
    problem = bx.Problem(
        f=lambda x, y, eta, xi: cost(y, eta, 2.0) / d + 0.1 * jnp.sum(x**2),
        g=lambda x, y, eta, xi: cost(y, eta, jax.nn.softplus(x) + 0.1) + 0.05 * jnp.sum(y**2),
        sample_context=lambda key, data: data["level"] * random.normal(key, (d,)),
        sample_conditional=lambda key, xi, data: xi + random.exponential(key, (d,)),
        init_y=lambda x, xi: xi,
    )
    return problem, lambda rng: ({"level": np.exp(rng.normal(size=d) / 2)}, rng.normal(size=d))


def conditional(d: int) -> Made:
    """Conditional stochastic optimization: a smooth loss of a conditional mean."""
    problem = bx.conditional_stochastic(
        lambda x, y, xi: jnp.sum(jnp.sqrt(1 + y**2)) + 0.05 * jnp.sum(x**2),
        lambda x, eta, xi: jnp.tanh(eta) * x - xi,
        sample_context=lambda key, data: data["level"] * random.normal(key, (d,)),
        sample_conditional=lambda key, xi, data: xi + random.normal(key, (d,)),
    )
    return problem, lambda rng: ({"level": np.exp(rng.normal(size=d) / 2)}, rng.normal(size=d))


KINDS = {"quadratic": quadratic, "softmax": softmax, "newsvendor": newsvendor, "CSO": conditional}


def checks(name: str, d: int, repeats: int, seed: int) -> dict[str, Any]:
    """So many checks of random problems of one kind and size."""
    problem, draw = KINDS[name](d)
    rng = np.random.default_rng([seed, d, list(KINDS).index(name)])
    started, alarms, open_, failed = time.process_time(), 0, 0, []
    for i in range(repeats):
        data, x = jax.tree.map(jnp.asarray, draw(rng))
        report = bx.check(problem.replace(data=data), x, key=random.fold_in(random.key(seed), i), **SETTINGS)
        alarms += not report.ok
        open_ += any(row.ok is None for row in report.rows)
        failed += [row.name for row in report.failed]
    seconds = time.process_time() - started
    told = {"problems": name, "size": d, "checks": repeats, "alarms": alarms, "with open rows": open_}
    return {**told, "CPU s": round(seconds, 1), "failed rows": ", ".join(sorted(set(failed)))}


def run(quick: bool = False, seed: int = 0) -> None:
    jax.config.update("jax_enable_x64", True)
    bx.cache()
    sizes = {1: 3, 10: 3} if quick else REPEATS
    rows = [checks(name, d, repeats, seed) for d, repeats in sizes.items() for name in KINDS]
    total, alarms = (sum(row[column] for row in rows) for column in ("checks", "alarms"))
    note = f"{alarms} alarms in {total} checks of right problems. Seed {seed}."
    publish("false_alarms", "False alarms of check", rows, [note])


if __name__ == "__main__":
    run()
