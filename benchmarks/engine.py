"""Microseconds per EpochSGD step on the meta-learning size: ours, a Numba loop, eager PyTorch."""

from __future__ import annotations

import jax
import numpy as np
from common import installed, interleaved, median, publish
from jax import random
from problems import meta
from rivals import numba_epoch_sgd, torch_meta

import bilevelax as bx

K = 11  # 4,094 steps a call


def run(quick: bool = False) -> None:
    app = meta()
    problem, x = app.problem, app.x1
    solver = bx.epoch_sgd()
    compiled = jax.jit(lambda key, problem: solver(key, problem, x, problem.nth_context(0), K).last)
    calls = {"bilevelax": lambda i: compiled(random.key(i), problem)}
    steps = {"bilevelax": 2 ** (K + 1) - 2, "numba": 2 ** (K + 1) - 2, "torch": 2**8 - 2}
    notes = ["torch and numba are benchmark-only: pip install 'bilevelax[bench]'. What is missing is skipped."]
    if installed("numba"):
        train = problem.data[0]
        features, labels = np.asarray(train.features[0]), np.asarray(train.labels[0])
        native = numba_epoch_sgd(features, labels, problem.mu_g, 1 / problem.mu_g, 1 / (2 * problem.L_g1))
        calls["numba"] = lambda i: native(np.asarray(jax.tree.leaves(x)[0]), K, i)
    if installed("torch"):
        import torch

        torch.set_num_threads(1)
        rival, params = torch_meta(app, 1 / problem.mu_g, 40)
        calls["torch"] = lambda i: rival.epoch_sgd(params, 0, 7)[2].numpy()
    seconds = interleaved(calls, rounds=5 if quick else 31)
    micro = {name: 1e6 * median(s) / steps[name] for name, s in seconds.items()}
    rows = [
        {"method": name, "us per step": value, "relative to bilevelax": value / micro["bilevelax"]}
        for name, value in micro.items()
    ]
    publish("engine", "EpochSGD, d = 512, C = 10, one sample per step, n = 4500", rows, notes)
