"""How long one gradient takes: single calls, many in one program, the first one, and a step of EpochSGD.

Keys are made before the clock starts. ``single`` is one call from Python; ``amortised`` one of many estimates, one
after another, in one program, which is what a step of a run costs. Ratios compare rows of one run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from common import installed, interleaved, median, publish
from jax import lax, random
from problems import meta, newsvendor
from rivals import numba_epoch_sgd
from toy import toy

import bilevelax as bx
from bilevelax.applications import Application
from bilevelax.base.compiling import program

N = 40  # terms of the Neumann series
SHARED = "The machine was shared or not as its load says; aims are of a quiet one."
FIRST = {
    "saa": "bx.saa(32)",
    "rt_mlmc": "bx.rt_mlmc(8)",
    "antithetic_mlmc": "bx.antithetic_mlmc(32)",
}  # of a minibatch of 64


def single(app: Application, estimator: bx.Estimator, keys: Any) -> Any:
    gradient = program()(lambda key, problem, x: estimator.estimate(key, problem, x, ())[0].grad)
    return lambda i: gradient(keys[i], app.problem, app.x1)


def amortised(app: Application, estimator: bx.Estimator, keys: Any) -> Any:
    """All keys[i] in one program."""
    one = lambda key, problem, x: estimator.estimate(key, problem, x, ())[0].grad
    gradients = program()(lambda keys, problem, x: lax.map(lambda key: one(key, problem, x), keys))
    return lambda i: gradients(keys[i], app.problem, app.x1)


def levels_by_time(name: str, app: Application, K: int, inverse: Any, quick: bool) -> list[dict[str, Any]]:
    """DL-SGD and RT-MLMC: milliseconds of one gradient, alone and among many."""
    rounds = 4 if quick else 16
    many = {"DL-SGD": 4 if K > 8 else 16, "RT-MLMC": 512}
    estimators = {"DL-SGD": bx.dl_sgd(K, inverse=inverse), "RT-MLMC": bx.rt_mlmc(K, inverse=inverse)}
    keys = random.split(random.key(0), (rounds + 1, 512))
    calls = {label: amortised(app, each, keys[:, : many[label]]) for label, each in estimators.items()}
    among = {label: 1e3 * median(s) / many[label] for label, s in interleaved(calls, rounds).items()}
    one = list(random.split(random.key(1), 20 * rounds + 1))
    alone = interleaved({"RT-MLMC": single(app, estimators["RT-MLMC"], one)}, 20 * rounds)["RT-MLMC"]
    row = {"what": name, "DL-SGD ms, amortised": among["DL-SGD"], "RT-MLMC ms, amortised": among["RT-MLMC"]}
    return [row | {"DL / RT": among["DL-SGD"] / among["RT-MLMC"], "RT-MLMC ms, single": 1e3 * median(alone)}]


def engine_steps(quick: bool) -> list[dict[str, Any]]:
    """Microseconds of an EpochSGD step at the meta-learning size, and of the native loop."""
    K, app = 11, meta()
    steps, solver, keys = 2 ** (K + 1) - 2, bx.epoch_sgd(), list(random.split(random.key(0), 32))
    solve = program()(lambda key, problem, x: solver(key, problem, x, problem.nth_context(0), K).last)
    calls: dict[str, Any] = {"ours": lambda i: solve(keys[i], app.problem, app.x1)}
    if installed("numba"):
        train, L, mu = app.problem.data[0], app.problem.L_g1, app.problem.mu_g
        native = numba_epoch_sgd(np.asarray(train.features[0]), np.asarray(train.labels[0]), mu, 1 / mu, 1 / (2 * L))
        start = np.asarray(jax.tree.leaves(app.x1)[0])
        calls["native loop"] = lambda i: native(start, K, i)
    micro = {name: 1e6 * median(s) / steps for name, s in interleaved(calls, 3 if quick else 15).items()}
    ratio = {"ours / native": micro["ours"] / micro["native loop"]} if "native loop" in micro else {}
    return [{"what": "EpochSGD step, us", **micro, **ratio}]


CHILD = """
import time; started = time.perf_counter()
import sys; sys.path.insert(0, {folder!r})
import jax, bilevelax as bx
from toy import toy
problem, x = toy(); estimator = bx.minibatch({estimator}, 64); key = jax.random.key(0)
imported = time.perf_counter()
jax.block_until_ready(estimator(key, problem, x))
print(time.perf_counter() - imported, time.process_time())
"""


def first_gradients(quick: bool) -> list[dict[str, Any]]:
    """Seconds to the first gradient of a minibatch of 64 on the toy, each in a process of its own, no cache."""
    rows = []
    environment = {**os.environ, "BILEVELAX_CACHE": "0"}
    for name, estimator in FIRST.items():
        code = CHILD.format(folder=str(Path(__file__).parent), estimator=estimator)
        seconds = []
        for _ in range(1 if quick else 3):
            ran = subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
            )
            seconds.append(float(ran.stdout.split()[0]))
        rows.append({"what": f"minibatch({name}, 64), seconds to the first gradient", "seconds": median(seconds)})
    return rows


def minibatches(quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of a call, m contexts, on the toy."""
    problem, x = toy()
    app = Application(problem, x, lambda x: {})
    rounds = 20 if quick else 100
    keys = list(random.split(random.key(2), rounds + 1))
    made = {
        "minibatch(rt_mlmc(8), 64)": bx.minibatch(bx.rt_mlmc(8), 64),
        "minibatch(rt_mlmc(12), 256)": bx.minibatch(bx.rt_mlmc(12), 256),
        "minibatch(antithetic_mlmc(32), 64)": bx.minibatch(bx.antithetic_mlmc(32), 64),
        "minibatch(saa(32), 64)": bx.minibatch(bx.saa(32), 64),
    }
    found = interleaved({name: single(app, each, keys) for name, each in made.items()}, rounds)
    return [{"what": name, "ms": 1e3 * median(s), "mean ms": 1e3 * float(np.mean(s))} for name, s in found.items()]


def run(quick: bool = False) -> None:
    started = time.perf_counter()
    app, other = newsvendor(), meta()
    rows = levels_by_time("newsvendor size, K = 8, N = 40", app, 8, bx.neumann(N), quick)
    rows += levels_by_time("newsvendor size, K = 8, without the implicit term (Danskin)", app, 8, bx.none(), quick)
    rows += levels_by_time("meta-learning size, K = 12, N = 40", other, 12, bx.neumann(N), quick)
    load = f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores. {SHARED}"
    publish("latency_gradients", "One gradient, alone and among many", rows, [load])
    publish("latency_steps", "A step of EpochSGD, d = 512, C = 10", engine_steps(quick), [load])
    publish("latency_minibatches", "A minibatch on the README's problem", minibatches(quick), [load])
    publish("latency_first", "The first gradient of a minibatch of 64", first_gradients(quick), [load])
    print(f"{time.perf_counter() - started:.0f} s in all.")
