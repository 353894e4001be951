"""What `minimize` costs beyond its gradients, at about 1 ms per step."""

from __future__ import annotations

from typing import Any

import jax
import optax
from common import interleaved, median, publish
from jax import random
from problems import meta

import bilevelax as bx

STEPS = 1000


def run(quick: bool = False) -> None:
    app = meta()
    estimator, optimizer = bx.dl_sgd(6, inverse=bx.neumann(40)), optax.sgd(1e-3)

    @jax.jit
    def bare(key: Any, problem: bx.Problem, x: Any) -> Any:
        """The same gradients and SGD steps, nothing else."""

        def step(t: Any, x: Any) -> Any:
            grad = estimator.estimate(random.split(random.fold_in(key, t))[0], problem, x, ())[0].grad
            return jax.tree.map(lambda a, g: a - 1e-3 * g, x, grad)

        return jax.lax.fori_loop(1, STEPS + 1, step, x)

    taken: list[float] = []

    def ours(i: int) -> object:
        result = bx.minimize(app.problem, estimator, optimizer, app.x1, key=random.key(i), T=STEPS, every=100)
        taken.append(result.seconds)
        return result.x

    calls = {"gradients alone": lambda i: bare(random.key(i), app.problem, app.x1), "minimize": ours}
    seconds = interleaved(calls, rounds=3 if quick else 15)
    alone, whole = (1e3 * median(seconds[name]) / STEPS for name in ("gradients alone", "minimize"))
    steps = 1e3 * median(taken[1:]) / STEPS
    rows = [
        {"what": "gradients alone, ms per step", "value": alone},
        {"what": "minimize, ms per step", "value": steps},
        {"what": "overhead per step, %", "value": 100 * (steps / alone - 1)},
        {"what": "set-up of a call (input checks), ms", "value": (whole - steps) * STEPS},
    ]
    publish("overhead", "The outer loop beyond its gradients", rows, [f"{STEPS} steps of DL-SGD with K = 6, d = 5120."])
