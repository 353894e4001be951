"""``bilevelax sweep CONFIG.toml``: a grid over settings and seeds, compared in one table and one plot."""

from __future__ import annotations

import csv
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bilevelax import applications
from bilevelax.cli.run import OPTIMIZERS, build_estimator, told_when_stopped
from bilevelax.cli.settings import call
from bilevelax.cli.sweep_config import Group, groups, read
from bilevelax.history import Row
from bilevelax.plots import curves
from bilevelax.sweep import Cell, Sweep, bounds, run_cells


class Done(NamedTuple):
    """A group's cells when all of them have ended."""

    name: str
    cells: list[Cell]
    history: list[Row]
    given_up: dict[str, str]
    seconds: float


def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file; see the page on scaling.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the records; by default sweeps/NAME.")] = None,
    processes: Annotated[int, typer.Option(help="Groups that run side by side.")] = 1,
) -> None:
    """Run a grid. Cells that differ in step and seed are one vectorised program, others take turns.

    Cells that diverge, or are surely worse than others, are given up early. The same command goes on
    where it was stopped.
    """
    fixed, grid = read(config)
    folder = out or Path("sweeps") / config.stem
    todo = groups(fixed, grid)
    done: list[Done] = []
    with told_when_stopped():
        if processes == 1:
            for group in todo:
                done.append(run_group(group, folder, rivals_of(done, fixed["metric"])))
                Console(stderr=True).print(f"{group.name}: {len(group.cells)} cells", highlight=False)
        else:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(processes, mp_context=context) as pool:
                done = list(pool.map(run_group, todo, [folder] * len(todo), [{}] * len(todo)))
    rows = settings_table(done, fixed["metric"])
    write_cells(done, folder / "cells.csv")
    show(rows, fixed["metric"])
    path = plot(done, rows, fixed["metric"], folder / "sweep.png")
    Console().print(f"Plot: {path}. Every cell: {folder / 'cells.csv'}", highlight=False)


def run_group(group: Group, folder: Path, rivals: dict[int, float]) -> Done:
    s = group.settings
    part = lambda prefix: {name.removeprefix(prefix): v for name, v in s.items() if name.startswith(prefix)}
    if s["optimizer"] not in OPTIMIZERS:
        raise ValueError(f"`optimizer` of a sweep must be one of {', '.join(OPTIMIZERS)}. Got {s['optimizer']!r}.")
    made = call("application", s["application"], applications.catalogue.load(s["application"]), part("app."))
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
    run = run_cells(one, group.cells, folder / group.name, rivals)
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
            mean = float(np.mean(values)) if values else float("inf")
            rows.append({"settings": each.name, "step": step, "seeds": len(mine), "mean": mean, "stderr": error})
            rows[-1]["state"] = "; ".join(reasons) or "finished"
    return sorted(rows, key=lambda row: (row["state"] != "finished", row["mean"]))


def write_cells(done: list[Done], path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = list(dict.fromkeys(name for each in done for row in each.history for name in row if name != "cell"))
        writer.writerow(["settings", "step", "seed", "state", *names])
        for each in done:
            for i, cell in enumerate(each.cells):
                last = [row for row in each.history if row["cell"] == i][-1:]
                values = [last[0].get(name) if last else None for name in names]
                writer.writerow([each.name, cell.step, cell.seed, each.given_up.get(str(i), "finished"), *values])


def show(rows: list[dict[str, Any]], metric: str) -> None:
    table = Table(title=f"{metric} at the end, best first", title_justify="left")
    for column in ("settings", "step", "seeds", metric, "standard error", "state"):
        table.add_column(column, justify="left" if column in ("settings", "state") else "right", overflow="fold")
    for row in rows:
        error = "" if row["stderr"] is None else f"{row['stderr']:.2g}"
        values = (row["settings"], f"{row['step']:g}", str(row["seeds"]), f"{row['mean']:.4g}", error, row["state"])
        table.add_row(*values)
    Console().print(table)


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
