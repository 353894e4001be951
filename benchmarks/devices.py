"""Many devices: throughput of two over one, and a simulation of how evenly hundreds would be loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import median, publish
from jax import random

import bilevelax as bx
from bilevelax.applications import meta_learning
from bilevelax.core.levels import plan_of
from bilevelax.run.devices import deal, expected_levels
from bilevelax.run.run import Run, devices_of

K, LANES, KEYS = 8, 64, 8
DEVICES, PER_DEVICE = (256, 4096), (16, 64, 256)


def application() -> Any:
    return meta_learning.make(d=128, images=50, batch=8, lam=2.0, norm=5.0)


def estimator(lanes: int) -> bx.Estimator:
    return bx.minibatch(bx.rt_mlmc(K), lanes)


def throughput(rounds: int) -> dict[str, float]:
    """Steps a second on a mesh of one and of two CPU devices, taking turns in one process."""
    app, runs = application(), {}
    for n in (1, 2):
        mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:n]), ("contexts",))
        settings = {"T": 10**6, "every": 10, "devices": devices_of(mesh)}
        runs[n] = Run(app.problem, estimator(LANES), optax.sgd(0.01), app.x1, random.key(0), **settings)
        runs[n].begin({})
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for i in range(rounds + 1):
        for n, run in runs.items():
            before = run.seconds
            run.advance(10)
            if i:
                seconds[n].append(run.seconds - before)
    return {f"{n} devices, steps /s": 10 / median(each) for n, each in seconds.items()}


def level_seconds(rounds: int) -> np.ndarray:
    """Of one estimate at each level 1..K, alone; the mean over keys, whose Neumann products differ in length."""
    app, levels = application(), bx.rt_mlmc(K).levels
    assert levels is not None
    one = jax.jit(lambda k, key, problem, x: levels.at_level(k, key, problem, x).grad)
    found = []
    for k in range(1, K + 1):
        best = np.full(KEYS, np.inf)  # over the rounds: what others do on the machine is not ours
        for i in range(KEYS * (rounds + 1)):
            started = time.perf_counter()
            jax.block_until_ready(one(jnp.int32(k), random.key(i % KEYS), app.problem, app.x1))
            if i >= KEYS:
                best[i % KEYS] = min(best[i % KEYS], time.perf_counter() - started)
        found.append(best.mean())
    return np.asarray(found)


def idle(seconds: np.ndarray, devices: int, lanes: int, draws: int = 20) -> dict[str, float]:
    """Share of the devices' time spent waiting for the slowest, with levels drawn freely and with levels dealt."""
    levels = bx.rt_mlmc(K).levels
    assert levels is not None
    rng, m = np.random.default_rng(0), devices * lanes
    plan = plan_of(levels, m)
    base = expected_levels(plan)
    dealt = deal(base, devices)
    waits: dict[str, list[float]] = {"free": [], "stratified": []}
    for _ in range(draws):
        free = 1 + rng.choice(K, size=(devices, lanes), p=levels.probabilities)
        ticks = rng.uniform() + np.arange(plan.left)
        left = 1 + np.searchsorted(np.cumsum(plan.fraction)[:-1], ticks, side="right")
        ours = np.concatenate([base[: m - plan.left], left]).astype(int)[dealt]
        for name, each in (("free", free), ("stratified", ours)):
            load = seconds[each - 1].sum(1)
            waits[name].append(1 - load.mean() / load.max())
    return {name: float(np.mean(each)) for name, each in waits.items()}


def run(quick: bool = False) -> None:
    words = [sys.executable, __file__, "5" if quick else "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    ratio = found["2 devices, steps /s"] / found["1 devices, steps /s"]
    publish(
        "devices",
        f"RT-MLMC, K = {K}, {LANES} contexts a step (softmax regression, 1280 parameters): two CPU devices over one",
        [{**found, "ratio": ratio}],
        ["Measured, on the cores of this machine; nothing else may run."],
    )
    seconds = level_seconds(5 if quick else 30)
    rows = [
        {"devices": devices, "contexts a device": lanes, **idle(seconds, devices, lanes)}
        for devices in DEVICES
        for lanes in PER_DEVICE
    ]
    publish(
        "devices_balance",
        "Simulated from the measured times of the levels: share of device time spent waiting",
        rows,
        [f"Milliseconds of one estimate at level 1..{K}: {', '.join(f'{1e3 * s:.2f}' for s in seconds)}."],
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    jax.config.update("jax_num_cpu_devices", 2)
    print(json.dumps(throughput(int(sys.argv[1]))))
