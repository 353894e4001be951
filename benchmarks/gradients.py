"""Time of one gradient by DL-SGD and RT-MLMC against K, ours and eager PyTorch, at the paper's two sizes."""

from __future__ import annotations

from typing import Any

import jax
from common import installed, interleaved, median, publish
from jax import random
from problems import meta, newsvendor
from rivals import torch_meta, torch_newsvendor

import bilevelax as bx
from bilevelax.applications import Application

N = 40


def compiled(app: Application, estimator: Any) -> Any:
    """Seconds are those of 16 gradients in one call: dispatch from Python is not the estimator's."""
    step = jax.jit(
        lambda key, problem, x: jax.lax.map(
            lambda key: estimator.estimate(key, problem, x, ())[0].grad, random.split(key, 16)
        )
    )
    return lambda i: step(random.key(i), app.problem, app.x1)


def measure(app: Application, rival: Any, levels: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for K in levels:
        ours = {
            "DL-SGD": compiled(app, bx.dl_sgd(K, inverse=bx.neumann(N))),
            "RT-MLMC": compiled(app, bx.rt_mlmc(K, inverse=bx.neumann(N))),
        }
        seconds = interleaved(ours, rounds=rounds)
        dl = median(seconds["DL-SGD"]) / 16
        rt = sum(seconds["RT-MLMC"]) / rounds / 16  # levels are random: the mean over calls is what a gradient costs
        row: dict[str, Any] = {"K": K, "DL-SGD ms": 1e3 * dl, "RT-MLMC ms (mean)": 1e3 * rt, "DL / RT": dl / rt}
        if rival is not None:
            row |= torch_row(*rival, K, rounds, rt)
        rows.append(row)
    return rows


def torch_row(rival: Any, params: Any, K: int, rounds: int, ours: float) -> dict[str, float]:
    """Eager PyTorch's mean times; DL-SGD is timed once above K = 8."""
    rt = interleaved({"rt": lambda i: [rival.rt_mlmc(params, K) for _ in range(16)] and 0}, rounds=max(3, rounds // 4))[
        "rt"
    ]
    dl = interleaved({"dl": lambda i: rival.dl_sgd(params, K) and 0}, rounds=1 if K > 8 else 3, warm_up=0)["dl"]
    seconds = sum(rt) / len(rt) / 16
    return {"torch DL ms": 1e3 * median(dl), "torch RT ms": 1e3 * seconds, "torch RT / ours": seconds / ours}


def run(quick: bool = False) -> None:
    rounds = 4 if quick else 24
    app = meta()
    torch = installed("torch")
    rival = torch_meta(app, 1 / app.problem.mu_g, N) if torch else None
    notes = [f"Neumann with N = {N}; means over random levels; PyTorch on one thread, eager autograd."]
    publish("gradients_meta", "One gradient, meta-learning size", measure(app, rival, (6, 8, 10, 12), rounds), notes)
    app = newsvendor()
    rival = torch_newsvendor(app, (64, 32), 1.0, 1.0, 3.0, N) if torch else None
    publish("gradients_newsvendor", "One gradient, newsvendor size", measure(app, rival, (2, 4, 6, 8), rounds), notes)
