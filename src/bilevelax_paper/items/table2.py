"""Table 2: time of one gradient on meta-learning."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax import random

from bilevelax.applications import Application
from bilevelax.estimators.bsvrb import bsvrb
from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _timing as timing
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row
from bilevelax.experiments._statistics import number
from bilevelax.experiments._timing import Printed
from bilevelax.inverse import InverseHessian, neumann

REAL = {"seeds": 1, "dataset": "auto", "small": False, "K": [6, 8, 10, 12]}
CONFIG = Config(
    title="Time of one gradient, meta-learning",
    place="Table 2",
    duration="about 4 minutes",
    scales={
        "smoke": {"seeds": 1, "dataset": "synthetic", "small": True, "K": [2], "calls": 4, "hessians": "synthetic"},
        "quick": {**REAL, "calls": 100, "hessians": "synthetic"},
        "full": {**REAL, "calls": 500, "hessians": "auto"},  # the dataset on which BSVRB v1 takes a step: minutes
    },
)
PAPER = {
    6: (Printed(2.65e-02, 6.34e-03), Printed(2.73e-02, 1.46e-02)),
    8: (Printed(7.23e-02, 7.77e-03), Printed(3.41e-02, 1.85e-02)),
    10: (Printed(2.48e-01, 2.75e-02), Printed(4.93e-02, 4.06e-02)),
    12: (Printed(9.38e-01, 3.71e-02), Printed(1.08e-01, 5.44e-02)),
}


TASKS = 2  # of which BSVRB keeps Hessians here; the time of a step on one of them does not depend on it


def hessian_rows(dataset: str, small: bool) -> list[Row]:
    """Seconds of a step of BSVRB on one task after compilation, and what it keeps of each task, versions 2 and 1."""
    data = meta.load(dataset, small)
    problem = dataclasses.replace(data.fit, n_contexts=TASKS)
    size = sum(leaf.size for leaf in jax.tree.leaves(data.x1))
    rows = []
    for version, calls in ((2, 5), (1, 1)):
        estimator = bsvrb(version, blocks=1, largest=size)
        state = estimator.init(problem, data.x1)
        step = jax.jit(estimator.estimate).lower(random.key(0), problem, data.x1, state).compile()
        taken = []
        for _ in range(calls):
            started = time.perf_counter()
            jax.block_until_ready(step(random.key(0), problem, data.x1, state))
            taken.append(time.perf_counter() - started)
        kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state.memory)) // TASKS
        row = {"kind": "hessians", "version": version, "d_y": size, "bytes": kept, "seconds": min(taken)}
        rows.append({**row, "tasks": data.fit.n_contexts})
    return rows


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    def load() -> tuple[Application, InverseHessian, str]:
        data = meta.load(settings["dataset"], settings["small"])
        return Application(data.fit, data.x1, lambda x: {}), neumann(N=meta.TERMS, scale=1.0), data.source

    constants = {"N": meta.TERMS, "lam": meta.LAM, "norm": meta.NORM}
    yield from timing.cells(settings, load, {"dataset": settings["dataset"], "small": settings["small"], **constants})
    of = {"hessians": settings["hessians"], "small": settings["small"], "tasks": TASKS}
    yield Cell("Hessians of BSVRB", partial(hessian_rows, settings["hessians"], settings["small"]), of)


def render(records: Records, out: Path) -> Rendered:
    return timing.render(records, out, "table2", "meta-learning", PAPER)


def claims(records: Records) -> list[Claim]:
    return [timing.faster(records, PAPER, "Meta-learning"), *hessians(records)]


def hessians(records: Records) -> list[Claim]:
    """BSVRB v1 against v2, where records have it."""
    rows = {row["version"]: row for row in records.where(kind="hessians")}
    if not rows:
        return []
    one, two = rows[1], rows[2]
    ratio, d, tasks = one["seconds"] / two["seconds"], one["d_y"], one["tasks"]
    K = max(records.distinct("K"))
    ours = float(timing.samples(records, "seconds", K)[:, 1].mean())
    claim = Claim(
        "BSVRB v1 is computationally expensive: it inverts a Hessian of 5120 x 5120 in each iteration",
        "no number",
        f"d_y = {d:,}: {number(one['seconds'])} s for a step on one task, {number(two['seconds'])} s in version 2, "
        f"{number(ratio)}x; it keeps {number(one['bytes'] * tasks / 1e9)} GB for {tasks} tasks, "
        f"version 2 {number(two['bytes'] * tasks / 1e9)} GB",
        1,
        Claim.judge(ratio > 100, ratio > 10),
        f"One step of v1 is timed, of v2 the fastest of five. {2 * d:,} Hessian-vector products and an "
        f"eigendecomposition a step and task; RT-MLMC, K = {K}, takes {number(1e3 * ours)} ms for a gradient.",
    )
    return [claim]
