"""What a minibatch of 64 contexts costs in each mode: time x variance."""

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
from bilevelax.core.minibatch import MODES

M = 64
K = 8


def total_variance(step: Any, n: int) -> float:
    """Of the gradient, over n keys; the compiled step is used again."""
    grads = [jax.tree.leaves(step(10_000 + i)) for i in range(n)]
    leaves = (np.stack([np.asarray(g[j], np.float64) for g in grads]) for j in range(len(grads[0])))
    return float(sum(np.var(leaf, axis=0, ddof=1).sum() for leaf in leaves))


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
    for name in estimators:
        ms = 1e3 * float(np.mean(seconds[name]))
        same = "loop" if name == "vmap" else name  # equal numbers, and much cheaper
        variance = total_variance(compiled[same], n)
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


def problems() -> dict[str, Application]:
    return {
        "softmax d=64": meta(d=64, images=50),
        "softmax d=512": meta(),
        "newsvendor, continuous": leader_follower(),
    }


def repeats(quick: bool) -> tuple[int, int]:
    """(timed rounds, gradients in the variance)."""
    return (3, 20) if quick else (25, 150)


def run(quick: bool = False) -> None:
    rows = []
    for name, app in problems().items():
        estimator = bx.rt_mlmc(K, inverse=bx.neumann(40))
        modes = {mode: bx.minibatch(estimator, M, mode) for mode in MODES}
        rows += [{"problem": name, **row} for row in compare(app, modes, *repeats(quick))]
    publish("modes", f"RT-MLMC, K = {K}, minibatch of {M}: mode", rows, ["Lower ms x variance is better."])
