"""How often the interval of `certify` holds |grad F|^2: ten laws of contexts, three gradients each, all known exactly.

The laws and losses are data, so one program serves all thirty cases. Where rare contexts decide, there must be no
interval: those are counted apart.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import publish
from jax import lax, random

import bilevelax as bx

# name -> (draw with mean zero, its variance)
LAWS: dict[str, tuple[Any, float]] = {
    "normal": (lambda key: random.normal(key), 1.0),
    "uniform": (lambda key: random.uniform(key, minval=-1.0, maxval=1.0), 1 / 3),
    "exponential": (lambda key: random.exponential(key) - 1, 1.0),
    "Laplace": (lambda key: random.laplace(key), 2.0),
    "Student, 5": (lambda key: random.t(key, 5.0), 5 / 3),
    "lognormal, 0.5": (lambda key: jnp.exp(random.normal(key) / 2) - np.exp(1 / 8), np.exp(0.5) - np.exp(0.25)),
    "lognormal, 2": (lambda key: jnp.exp(2 * random.normal(key)) - np.exp(2), np.exp(8) - np.exp(4)),
    "one in 20": (lambda key: jnp.where(random.uniform(key) < 0.05, 19.0, -1.0), 19.0),
    "one in 100": (lambda key: jnp.where(random.uniform(key) < 0.01, 99.0, -1.0), 99.0),
    "one in 1,000": (lambda key: jnp.where(random.uniform(key) < 1e-3, 999.0, -1.0), 999.0),
}
FIRST = 90_000  # key: those below chose how an interval is widened or withheld
NOISE = 0.5  # standard deviation of eta
LOSSES = {"stationary": (0, 0.0), "square": (0, 1.0), "cubic": (1, 0.5)}  # which f, and x


def problem() -> bx.Problem:
    """y* = x - v with v the context; f = y^2 / 2 or y^3 / 3, so that grad F = x or x^2 + Var v."""

    def sample_context(key: Any, data: Any) -> Any:
        draws = [lambda key, draw=draw: jnp.asarray(draw(key), float) for draw, _ in LAWS.values()]
        return jnp.stack([lax.switch(data[0], draws, key), data[1].astype(float)])

    return bx.Problem(
        f=lambda x, y, eta, xi: jnp.where(xi[1] == 0, y[0] ** 2 / 2, y[0] ** 3 / 3),
        g=lambda x, y, eta, xi: jnp.sum((y - x + xi[0] - eta) ** 2) / 2,
        sample_context=sample_context,
        sample_conditional=lambda key, xi, data: NOISE * random.normal(key, (1,)),
        init_y=lambda x, xi: jnp.zeros(1),
        data=(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)),
    )


def covered(made: bx.Problem, law: str, loss: str, repeats: int, n: int, first: int = FIRST) -> dict[str, Any]:
    which, x = LOSSES[loss]
    true = (x if which == 0 else x**2 + LAWS[law][1]) ** 2
    made = made.replace(data=(jnp.asarray(list(LAWS).index(law), jnp.int32), jnp.asarray(which, jnp.int32)))
    found = [bx.certify(made, jnp.full(1, x), key=random.key(first + i), n=n) for i in range(repeats)]
    given = [each for each in found if not each.told]
    holds = sum(bool(each.low <= true <= each.high) for each in given)
    effective = float(np.median([each.effective for each in found]))
    share = f"{100 * holds / len(given):.0f} %" if given else ""
    columns = {"law": law, "gradient": loss, "intervals": len(given), "hold": holds, "share": share}
    return {**columns, "withheld": repeats - len(given), "effective contexts": round(effective, 1)}


def run(quick: bool = False) -> None:
    jax.config.update("jax_enable_x64", True)
    bx.cache()
    started, made = time.process_time(), problem()
    repeats, n = (5, 256) if quick else (400, 1024)
    rows = [covered(made, law, loss, repeats, n) for law in LAWS for loss in LOSSES]
    took = f"{time.process_time() - started:.0f} CPU s, n = {n}, {repeats} certificates of each, level 95 %."
    publish("certificates", "Coverage of certify", rows, [took])


LOWEST = ("Student, 5", "square"), ("normal", "square"), ("uniform", "cubic"), ("normal", "cubic")


def again(first: int, repeats: int) -> None:
    """The cases that held least often, with other keys, in a record of their own."""
    jax.config.update("jax_enable_x64", True)
    bx.cache()
    started, made = time.process_time(), problem()
    rows = [covered(made, law, loss, repeats, 1024, first) for law, loss in LOWEST]
    took = f"{time.process_time() - started:.0f} CPU s, n = 1024, {repeats} certificates of each, keys from {first}."
    publish("certificates_lowest", "Coverage of certify: the lowest cases again", rows, [took])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lowest", type=int, metavar="KEY", help="the lowest cases again, keys from this number")
    parser.add_argument("--repeats", type=int, default=400)
    given = parser.parse_args()
    run() if given.lowest is None else again(given.lowest, given.repeats)
