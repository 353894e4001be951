"""The groups of a sweep, run and compared: tables and a plot. Imports JAX; the command waits for it."""

from __future__ import annotations

import csv
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevelax.cli._builders import OPTIMIZERS, build_application, build_estimator
from bilevelax.cli._terminal import keep_programs
from bilevelax.cli.sweep_config import SweepGroup
from bilevelax.report.curves import curves
from bilevelax.run.records.history import Row
from bilevelax.run.records.progress import Progress
from bilevelax.run.sweep import Setting, Sweep, bounds, run_cells


class Done(NamedTuple):
    """A group's cells when all of them have ended."""

    name: str
    cells: list[Setting]
    history: list[Row]
    given_up: dict[str, str]
    seconds: float


def run_in_turn(todo: list[SweepGroup], folder: Path, metric: str) -> list[Done]:
    """One group after another: later ones are compared with what earlier ones reached."""
    done: list[Done] = []
    for number, group in enumerate(todo, 1):
        label = f"{group.name} ({number} of {len(todo)})" if len(todo) > 1 else "sweep"
        done.append(run_group(group, folder, rivals_of(done, metric), label=label))
    return done


def run_side_by_side(todo: list[SweepGroup], folder: Path, processes: int) -> list[Done]:
    """Each group in a process of its own, which stays silent."""
    context, done = multiprocessing.get_context("spawn"), []
    work = partial(run_group, folder=folder, rivals={}, progress=False)
    with Progress(len(todo), label="groups") as bar, ProcessPoolExecutor(processes, mp_context=context) as pool:
        for each in pool.map(work, todo):
            done.append(each)
            bar.update(len(done), {})
    return done


def run_group(
    group: SweepGroup, folder: Path, rivals: dict[int, float], label: str = "sweep", progress: bool | None = None
) -> Done:
    keep_programs()  # here, for it may be a process of its own
    s = group.settings
    part = lambda prefix: {name.removeprefix(prefix): v for name, v in s.items() if name.startswith(prefix)}
    if s["optimizer"] not in OPTIMIZERS:
        raise ValueError(f"`optimizer` of a sweep must be one of {', '.join(OPTIMIZERS)}. Got {s['optimizer']!r}.")
    made = build_application(s["application"], part("app."))
    one = Sweep(
        made.problem,
        build_estimator(s["estimator"], None, None, s["contexts"], part("est.")),
        OPTIMIZERS[s["optimizer"]],
        made.x1,
        made.metrics,
        s["metric"],
        s["T"],
        s["every"],
    )
    run = run_cells(one, group.cells, folder / group.name, rivals, label=label, progress=progress)
    return Done(group.name, run.cells, run.history, run.given_up, run.seconds)


def rivals_of(done: list[Done], metric: str) -> dict[int, float]:
    """At each t, the metric that some finished setting is surely below."""
    found: dict[int, float] = {}
    for each in done:
        for t in sorted({int(row["t"]) for row in each.history}):
            highs = [high for _, high in bounds(each.history, each.cells, metric, t).values()]
            found[t] = min([*highs, found.get(t, np.inf)])
    return found


def settings_table(done: list[Done], metric: str) -> list[dict[str, Any]]:
    """One row for each setting, over its seeds, best first."""
    rows = []
    for each in done:
        for step in dict.fromkeys(cell.step for cell in each.cells):
            mine = [i for i, cell in enumerate(each.cells) if cell.step == step]
            last = [[row for row in each.history if row["cell"] == i][-1:] for i in mine]
            values = [rows[0][metric] for rows in last if rows]
            reasons = sorted({each.given_up[str(i)] for i in mine if str(i) in each.given_up})
            error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
            mean = float(np.mean(values)) if values else None
            rows.append({"settings": each.name, "step": step, "seeds": len(mine), "mean": mean, "stderr": error})
            rows[-1]["state"] = "; ".join(reasons) or "finished"
    return sorted(rows, key=lambda row: (row["state"] != "finished", math.inf if row["mean"] is None else row["mean"]))


def write_cells(done: list[Done], path: Path) -> Path:
    """One line for each cell: its settings, its state and its last row."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = list(dict.fromkeys(name for each in done for row in each.history for name in row if name != "cell"))
        writer.writerow(["settings", "step", "seed", "state", *names])
        for each in done:
            for i, cell in enumerate(each.cells):
                last = [row for row in each.history if row["cell"] == i][-1:]
                values = [last[0].get(name) if last else None for name in names]
                writer.writerow([each.name, cell.step, cell.seed, each.given_up.get(str(i), "finished"), *values])
    return path


def plot(done: list[Done], rows: list[dict[str, Any]], metric: str, path: Path, most: int = 8) -> Path:
    """The mean over seeds along the run, for the best settings."""
    histories = {}
    by_name = {each.name: each for each in done}
    for row in rows[:most]:
        each = by_name[row["settings"]]
        mine = [i for i, cell in enumerate(each.cells) if cell.step == row["step"]]
        points: dict[float, list[float]] = {}
        for r in each.history:
            if r["cell"] in mine:
                points.setdefault(r["t"], []).append(r[metric])
        if points:
            name = f"{row['settings']}, step {row['step']:g}" if row["settings"] != "all" else f"step {row['step']:g}"
            histories[name] = [{"t": t, metric: float(np.mean(v))} for t, v in points.items()]
    return curves(histories, y=metric, x=("t",), path=path, labels={"t": "outer steps"})
