"""What `minimize` costs beyond its gradients, at about 1 ms per step."""

from __future__ import annotations

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
    def bare(key, problem, x):  # type: ignore[no-untyped-def]
        """The same gradients and SGD steps, nothing else."""

        def step(t, x):  # type: ignore[no-untyped-def]
            grad = estimator.estimate(random.split(random.fold_in(key, t))[0], problem, x, ())[0].grad
            return jax.tree.map(lambda a, g: a - 1e-3 * g, x, grad)

        return jax.lax.fori_loop(1, STEPS + 1, step, x)

    def ours(i: int) -> object:
        return bx.minimize(app.problem, estimator, optimizer, app.x1, key=random.key(i), T=STEPS, every=100).x

    seconds = interleaved(
        {"gradients alone": lambda i: bare(random.key(i), app.problem, app.x1), "minimize": ours},
        rounds=3 if quick else 11,
    )
    ms = {name: 1e3 * median(s) / STEPS for name, s in seconds.items()}
    extra = 100 * (ms["minimize"] / ms["gradients alone"] - 1)
    rows = [{"what": name, "ms per step": value} for name, value in ms.items()]
    publish("overhead", "The outer loop beyond its gradients", [*rows, {"what": "overhead, %", "ms per step": extra}])
