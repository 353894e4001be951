"""What a minibatch of 64 contexts costs in each mode, and what to average inside it: time x variance."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from common import interleaved, median, publish
from jax import random
from problems import leader_follower, meta

import bilevelax as bx
from bilevelax.applications import Application
from bilevelax.minibatch import MODES

M = 64
K = 8


def total_variance(app: Application, estimator: Any, n: int) -> float:
    draw = jax.jit(lambda keys: jax.lax.map(lambda key: estimator.estimate(key, app.problem, app.x1, ())[0].grad, keys))
    grads = jax.tree.leaves(draw(random.split(random.key(1), n)))
    return sum(float(np.var(np.asarray(g, np.float64), axis=0, ddof=1).sum()) for g in grads)


def compare(app: Application, estimators: dict[str, Any], rounds: int, n: int) -> list[dict[str, Any]]:
    compiled, compile_seconds = {}, {}
    for name, estimator in estimators.items():
        step = jax.jit(lambda key, problem, x, e=estimator: e.estimate(key, problem, x, ())[0].grad)
        started = time.perf_counter()
        jax.block_until_ready(step(random.key(0), app.problem, app.x1))
        compile_seconds[name] = time.perf_counter() - started
        compiled[name] = lambda i, step=step: step(random.key(i), app.problem, app.x1)
    seconds = interleaved(compiled, rounds)
    rows = []
    for name, estimator in estimators.items():
        ms = 1e3 * float(np.mean(seconds[name]))
        variance = total_variance(app, estimator, n)
        rows.append(
            {
                "estimator": name,
                "ms": ms,
                "median ms": 1e3 * median(seconds[name]),
                "variance": variance,
                "ms x variance": ms * variance,
                "compile s": compile_seconds[name],
            }
        )
    return rows


def run(quick: bool = False) -> None:
    rounds, n = (5, 50) if quick else (60, 400)
    problems = {
        "softmax d=64": meta(d=64, images=50),
        "softmax d=512": meta(),
        "newsvendor, continuous": leader_follower(),
    }
    rows = []
    for name, app in problems.items():
        estimator = bx.rt_mlmc(K, inverse=bx.neumann(40))
        modes = {mode: bx.minibatch(estimator, M, mode) for mode in MODES}
        rows += [{"problem": name, **row} for row in compare(app, modes, rounds, n)]
    publish(
        "modes", f"RT-MLMC, K = {K}, minibatch of {M}: mode", rows, ["Lower ms x variance is better; one table a run."]
    )

    rows = []
    for name, app in problems.items():
        choices = {
            f"{M // size} contexts, batch {size}, lower batch {size}": bx.minibatch(
                bx.rt_mlmc(K, lower=bx.epoch_sgd(batch=size), inverse=bx.neumann(40), batch=size), M // size
            )
            for size in (1, 4, 16, 64)
        }
        rows += [{"problem": name, **row} for row in compare(app, choices, rounds, n)]
    publish("batches", f"RT-MLMC, K = {K}: {M} samples a step as contexts or as batches within them", rows)
