"""Is `antithetic_mlmc()` good as it comes? Work x variance against settings that were fitted to each problem.

Work is the CPU time of a call, all settings taking turns, so that other programs on the machine add little to it. The
fitted ones have the rate of a pilot (`correction_rate`) and the problem's own n0, or four times as many samples.
``/ fitted`` divides by the best of these, after +- its standard error. All have next to no bias: at their deepest
level each is `saa` on 64 n0 samples.

``python benchmarks/defaults.py NAME ...`` measures some of the problems, and keeps what the last record has of others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from antithetic import Compiled, Sample, Setup, compiled, fitted, problems, relative_error
from common import RESULTS, median, publish
from jax import random

import bilevelax as bx

AS_IT_COMES = "antithetic, as it comes"
LEAST, SECONDS = 40, 20  # calls of each setting, and CPU seconds of all those on a problem


def taking_turns(calls: dict[str, Compiled], rounds: int) -> dict[str, tuple[list[float], Sample]]:
    """CPU milliseconds and gradients of every call, as many as there is time for, but LEAST."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    grads: dict[str, list[np.ndarray]] = {name: [] for name in calls}
    keys = list(random.split(random.key(11), rounds + 1))
    for i, key in enumerate(keys):
        if i > LEAST and sum(map(sum, spent.values())) > 1e3 * SECONDS:
            break
        for name, call in calls.items():
            started = time.process_time()
            grad = jax.block_until_ready(call.step(key, call.app.problem, call.app.x1))
            if i:  # the first one compiles
                spent[name].append(1e3 * (time.process_time() - started))
                grads[name].append(np.asarray(grad, np.float64))
    return {name: (spent[name], Sample(np.stack(grads[name]))) for name in calls}


def rows_of(problem: str, setup: Setup, rounds: int) -> list[dict[str, Any]]:
    ways = {AS_IT_COMES: bx.antithetic_mlmc()}
    ways |= dict(fitted(setup.app, n0, 2, 8) for n0 in (setup.n0, 4 * setup.n0))
    found = taking_turns({name: compiled(setup, each) for name, each in ways.items()}, rounds)
    rows = [
        {
            "problem": problem,
            "estimator": name,
            "ms": median(ms),
            "+-": float(np.std(ms, ddof=1) / np.sqrt(len(ms))),
            "variance": sample.variance,
            "+- ": sample.variance_stderr,
            "ms x variance": median(ms) * sample.variance,
        }
        for name, (ms, sample) in found.items()
    ]
    best = min((row for row in rows if row["estimator"] != AS_IT_COMES), key=lambda row: row["ms x variance"])
    for row in rows:
        ratio = row["ms x variance"] / best["ms x variance"]
        row |= {"/ fitted": ratio, "+- of it": ratio * relative_error(row, best)}
    return rows


def measured_before(names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the last record on other problems than these."""
    path = RESULTS / "defaults.json"
    rows = json.loads(path.read_text())["rows"] if names and path.exists() else []
    return [row for row in rows if row["problem"] not in names]


def run(quick: bool = False, names: Sequence[str] = ()) -> None:
    found, rows = problems(quick), measured_before(names)
    for name in names or found:
        rows += rows_of(name, found[name](), 30 if quick else 200)
        publish("defaults", "antithetic_mlmc() as it comes, and fitted", rows, ["Lower is better; the aim is 1.5."])


if __name__ == "__main__":
    run(names=sys.argv[1:])
