"""Figure 2: RT-MLMC against BSVRB v2, by iterations and by time.

Seconds of an iteration are measured apart from the runs, the methods taking turns, and the least of the turns counts:
what else a machine does can only add.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax

from bilevelax.estimators.bsvrb import bsvrb
from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _training as training
from bilevelax.experiments._fig2_claims import OURS, claims, each, runs, seconds, table_of
from bilevelax.experiments._items import Cell, Config, Records, Rendered, Row, Table
from bilevelax.experiments._meta_views import KINDS, tuning
from bilevelax.experiments._statistics import mean
from bilevelax.experiments._trajectories import seed_keys

__all__ = ["CONFIG", "claims", "render", "run"]

GRIDS = {  # on one tuning seed, t0 = T/4 or T; also scales that the paper's rule has not
    "smoke": {"paper": [0.3], "constant": [0.1], "adam": [0.01]},
    "quick": {"paper": [0.3, 1.0], "constant": [0.3], "adam": [0.003]},
    "full": {"paper": [0.3, 1.0], "constant": [0.1, 0.3], "adam": [0.001, 0.003, 0.01]},
}
CONFIG = Config(
    title="RT-MLMC against BSVRB v2, by iterations and by time",
    place="Figure 2",
    duration="about 4 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "dataset": "synthetic",
            "small": True,
            "K": 2,
            "T": 6,
            "longer": 2,
            "points": 2,
            "grid": GRIDS["smoke"],
        },
        "quick": {
            "seeds": 2,
            "dataset": "auto",
            "small": False,
            "K": 8,
            "T": 60,
            "longer": 4,
            "points": 5,
            "grid": GRIDS["quick"],
        },
        "full": {
            "seeds": 4,
            "dataset": "auto",
            "small": False,
            "K": 8,
            "T": 200,
            "longer": 8,
            "points": 6,
            "grid": GRIDS["full"],
        },
    },
)


TIMED, TURNS = 40, 3  # iterations, and how often all methods have their turn


def rivals(settings: dict[str, Any]) -> list[tuple[meta.Method, int]]:
    """(method, iterations). RT-MLMC as in the paper and with less noise; BSVRB in two settings of its trackers, the
    theory's and its public scripts', and longer."""
    shared = {"blocks": meta.TASKS, "batch": meta.IMAGES}
    theory = meta.Method("BSVRB", "v2, a = b = 0.5", bsvrb(2, **shared), meta.UNTIL_Y_STAR)
    scripts = meta.Method("BSVRB", "v2, a = b = 0.9, c = 1", bsvrb(2, a=0.9, b=0.9, c=1.0, **shared), meta.UNTIL_Y_STAR)
    T = settings["T"]
    runs = [(method, n) for method in (theory, scripts) for n in (T, settings["longer"] * T)]
    ours = [(one(settings["K"])._replace(adaptation=meta.UNTIL_Y_STAR), T) for one in (meta.rt, meta.quiet)]
    return [*ours, *runs]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    data, trials = partial(meta.load, settings["dataset"], settings["small"]), meta.tuner(settings)

    def work(method: meta.Method, T: int) -> list[Row]:
        found, points = trials(method, T), training.checkpoints_of(T, settings["points"])
        rows = [{**row, "T": T} for row in meta.tuning_rows(method, found)]
        return rows + loss_curves(data(), method, meta.both_rules(found), seeds=seeds, checkpoints=points)

    for method, T in rivals(settings):
        yield Cell(f"{method.name}, {method.setting}, T = {T}", partial(work, method, T))
    yield Cell("seconds of an iteration", partial(timed, settings, data))


def timed(settings: dict[str, Any], data: Callable[[], meta.Data]) -> list[Row]:
    """By turns, compiled before, without evaluations."""
    times, rule = training.checkpoints_of(TIMED, settings["points"]), training.Rule("constant", 0.01)
    methods = {(method.name, method.setting): method for method, _ in rivals(settings)}
    rows: list[Row] = []
    for turn in range(-1, TURNS):  # turn -1 compiles
        for (name, setting), method in methods.items():
            started = time.perf_counter()
            jax.block_until_ready(
                training.train(data().fit, data().x1, method.estimator, rule, seed=0, checkpoints=times)
            )
            seconds = (time.perf_counter() - started) / TIMED
            if turn >= 0:
                rows.append({"kind": "time", "method": name, "setting": setting, "turn": turn, "seconds": seconds})
    return rows


def loss_curves(
    data: meta.Data,
    method: meta.Method,
    rules: dict[str, training.Rule],
    *,
    seeds: int,
    checkpoints: tuple[int, ...],
) -> list[Row]:
    """Test losses after adaptation until y* at each checkpoint, with both kinds of steps."""
    rows = []
    for seed, key in enumerate(seed_keys(seeds, training.ROLE_ADAPT)):
        for steps, rule in rules.items():
            curve = training.train(data.fit, data.x1, method.estimator, rule, seed=seed, checkpoints=checkpoints)
            columns: Row = {"kind": "curve", "method": method.name, "setting": method.setting, "steps": steps}
            columns |= {"rule": str(rule), "data": data.source, "T": checkpoints[-1], "seed": seed}
            xs = training.unstack(curve.x)
            losses = meta.losses(data.test, xs, [key] * len(xs), meta.UNTIL_Y_STAR)
            rows += [{**columns, "t": t, "loss": training.finite(v)} for t, v in zip(checkpoints, losses, strict=True)]
    return rows


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(2 * len(KINDS), rows=len(KINDS), sharey=True)
    grid = axes.reshape(len(KINDS), 2)
    for (steps, words), panels in zip(KINDS.items(), grid, strict=True):
        draw(records, panels[0], steps, longer=False)
        draw(records, panels[1], steps, longer=True)
        panels[0].set(xlabel="upper iterations", ylabel="test loss, adapted until y*", title=f"by iterations, {words}")
        panels[1].set(xlabel="seconds (compilation apart)", title=f"by time, {words}")
    figures.legend(axes[0], room=0.3)  # they share one axis
    for panel in axes[1:]:
        figures.legend(panel)
    data = records.distinct("data", kind="curve")[0]
    caption = (
        f"RT-MLMC (K = {records.settings['K']}) and BSVRB v2 on {data}, features of length {meta.NORM:g}; 95 % bands "
        f"over {records.settings['seeds']} seeds. Right: BSVRB runs {records.settings['longer']} times as many "
        "iterations. Dotted: the setting of BSVRB's trackers that validation did not choose. The paper prints no "
        "numbers for this figure."
    )
    return Rendered([(figures.save(figure, out, "fig2"), caption)], [ends(records), tuning(records, "T")])


def draw(records: Records, panel: Any, steps: str, longer: bool) -> None:
    """By time where BSVRB runs longer, else by iterations."""
    all_runs = runs(records, steps, longer)
    for which in all_runs:
        x = table_of(records, "t", **which)[0] * (each(records, which) if longer else 1.0)
        style = "solid" if which["method"] in OURS or which is all_runs[-1] else "dotted"
        label = which["method"] if which["method"] in OURS else f"BSVRB {which['setting']}"
        figures.band(panel, x, table_of(records, "loss", **which), which["method"], label, linestyle=style)


def ends(records: Records) -> Table:
    rows = [
        (
            which["method"],
            which.get("setting", f"K = {records.settings['K']}"),
            str(which["T"]),
            last_rule(records, which),
            str(mean(table_of(records, "loss", **which)[:, -1])),
            f"{seconds(records, which):.2g}",
        )
        for longer in (False, True)
        for steps in KINDS
        for which in runs(records, steps, longer)
        if longer is False or which["method"] == "BSVRB"
    ]
    columns = ("method", "setting", "iterations", "steps", "test loss", "seconds")
    return Table("Last iterates", columns, rows)


def last_rule(records: Records, which: dict[str, Any]) -> str:
    return records.values("rule", kind="curve", **which)[0]
