"""Table 2: time of one gradient on meta-learning."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
from jax import random

import bilevelax as bx
from bilevelax.applications import Application
from bilevelax.base.timing import timed
from bilevelax.core.inverse import InverseHessian
from bilevelax_paper import meta, timing
from bilevelax_paper.claims import ALONE, Found, claims_of
from bilevelax_paper.item import Cell, Config, Records, Row

CONFIG = Config.read(__file__)
TASKS = 2  # of which BSVRB keeps Hessians here; the time of a step on one of them does not depend on it


def hessian_rows(dataset: str, small: bool) -> list[Row]:
    """Seconds of a step of BSVRB on one task after compilation, and what it keeps of each task, versions 2 and 1."""
    data = meta.load(dataset, small)
    problem = data.fit.replace(n_contexts=TASKS)
    size = sum(leaf.size for leaf in jax.tree.leaves(data.x1))
    rows = []
    for version, calls in ((2, 5), (1, 1)):
        estimator = bx.bsvrb(version, blocks=1, largest=size)
        state = estimator.init(problem, data.x1)
        step = jax.jit(estimator.estimate).lower(random.key(0), problem, data.x1, state).compile()
        once = partial(step, random.key(0), problem, data.x1, state)
        seconds = min(timed(once)[0] for _ in range(calls))
        kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state.memory)) // TASKS
        row = {"kind": "hessians", "version": version, "d_y": size, "bytes": kept, "seconds": seconds}
        rows.append({**row, "tasks": data.fit.n_contexts})
    return rows


def load(settings: Row) -> tuple[Application, InverseHessian, str]:
    data = meta.load(settings["dataset"], settings["small"])
    return Application(data.fit, data.x1, lambda x: {}), bx.neumann(N=meta.TERMS, scale=1.0), data.source


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    constants = {"N": meta.TERMS, "lam": meta.LAM, "norm": meta.NORM}
    depends = {"dataset": settings["dataset"], "small": settings["small"], **constants}
    yield from timing.cells(settings, seeds, load, depends)
    of = {"hessians": settings["hessians"], "small": settings["small"], "tasks": TASKS, "seeds": 1}
    yield Cell("Hessians of BSVRB", partial(hessian_rows, settings["hessians"], settings["small"]), of)


render = partial(timing.drawn, config=CONFIG)


def hessians(records: Records) -> Found | None:
    """BSVRB v1 against v2, where records have it."""
    rows = {row["version"]: row for row in records.where(kind="hessians")}
    if not rows:
        return None
    one, two = rows[1], rows[2]
    each = lambda make: {f"version {version}": make(row) for version, row in sorted(rows.items())}
    d, K = one["d_y"], max(records.distinct("K"))
    ours = float(1e3 * timing.samples(records, timing.ALONE, K)[:, 1].mean())
    beside = {
        f"seconds of a step on one task, d_y = {d:,}": each(lambda row: row["seconds"]),
        f"GB kept for {one['tasks']} tasks": each(lambda row: row["bytes"] * row["tasks"] / 1e9),
    }
    words = {"products": f"{2 * d:,}", "K": K, "ours": ours}
    return Found({"version 1 over version 2, time": one["seconds"] / two["seconds"]}, beside, words, seeds=1)


CLAIMS = claims_of(CONFIG, timing.rules(CONFIG) | {hessians: ALONE})
