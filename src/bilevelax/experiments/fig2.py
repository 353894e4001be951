"""Figure 2: RT-MLMC against BSVRB v2, by iterations and by time."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevelax.estimators.bsvrb import bsvrb
from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _training as training
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row, Table
from bilevelax.experiments._meta_views import tuning_table
from bilevelax.experiments._statistics import Interval, mean
from bilevelax.experiments._trajectories import seed_keys

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
            "grid": {"paper": [0.3], "constant": [0.1], "adam": [0.01]},
        },
        "quick": {
            "seeds": 2,
            "dataset": "auto",
            "small": False,
            "K": 8,
            "T": 60,
            "longer": 4,
            "points": 5,
            "grid": {"paper": [0.3, 1.0], "constant": [0.3], "adam": [0.003]},
        },
        "full": {
            "seeds": 4,
            "dataset": "auto",
            "small": False,
            "K": 8,
            "T": 200,
            "longer": 8,
            "points": 6,
            "grid": {"paper": [0.3, 1.0], "constant": [0.1, 0.3], "adam": [0.001, 0.003, 0.01]},
        },
    },
)


def rivals(settings: dict[str, Any]) -> list[tuple[meta.Method, int]]:
    """(method, iterations). BSVRB in two settings of its trackers, the theory's and its public scripts', and longer."""
    shared = {"blocks": meta.TASKS, "batch": meta.IMAGES}
    theory = meta.Method("BSVRB", "v2, a = b = 0.5", bsvrb(2, **shared), meta.UNTIL_Y_STAR)
    scripts = meta.Method("BSVRB", "v2, a = b = 0.9, c = 1", bsvrb(2, a=0.9, b=0.9, c=1.0, **shared), meta.UNTIL_Y_STAR)
    T = settings["T"]
    runs = [(method, n) for method in (theory, scripts) for n in (T, settings["longer"] * T)]
    return [(meta.rt(settings["K"])._replace(adaptation=meta.UNTIL_Y_STAR), T), *runs]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    data = partial(meta.load, settings["dataset"], settings["small"])

    @functools.cache
    def trials(method: meta.Method, T: int) -> list[training.Trial]:
        return meta.tuned(data(), method, T, settings["points"], settings["grid"])

    def work(method: meta.Method, T: int) -> list[Row]:
        points = training.checkpoints_of(T, settings["points"])
        rows = [{**row, "T": T} for row in meta.tuning_rows(method, trials(method, T))]
        for which, rule in meta.both_rules(trials(method, T)).items():
            rows += timed_curve(data(), method, rule, seeds=seeds, checkpoints=points, steps_of=which)
        return rows

    for method, T in rivals(settings):
        yield Cell(f"{method.name}, {method.setting}, T = {T}", partial(work, method, T))


def timed_curve(
    data: meta.Data,
    method: meta.Method,
    rule: training.Rule,
    *,
    seeds: int,
    checkpoints: tuple[int, ...],
    steps_of: str,
) -> list[Row]:
    """Test losses after adaptation until y*, and the seconds of the run up to each checkpoint.

    A run is timed as a whole, compiled and without evaluations, and its iterations are taken as equally long.
    """
    T = checkpoints[-1]
    columns = {"kind": "curve", "method": method.name, "setting": method.setting, "steps": steps_of, "rule": str(rule)}
    columns |= {"data": data.source}
    rows = []
    for seed, key in enumerate(seed_keys(seeds, training.ROLE_ADAPT)):
        started = time.perf_counter()
        curve = training.train(data.fit, data.x1, method.estimator, rule, seed=seed, checkpoints=checkpoints)
        xs = training.unstack(jax.block_until_ready(curve).x)
        seconds = time.perf_counter() - started
        losses = meta.losses(data.test, xs, [key] * len(xs), meta.UNTIL_Y_STAR)
        for t, loss in zip(checkpoints, losses, strict=True):
            rows.append({**columns, "T": T, "seed": seed, "t": t, "loss": float(loss), "seconds": seconds * t / T})
    return rows


def table_of(records: Records, column: str, **equal: Any) -> np.ndarray:
    """(seeds, checkpoints)."""
    return np.array([records.values(column, kind="curve", seed=seed, **equal) for seed in records.distinct("seed")])


def chosen(records: Records, T: int, steps: str) -> dict[str, Any]:
    """The setting of BSVRB with the least validation loss of these iterations."""
    kinds = ("1/sqrt",) if steps == "paper" else ("SGD", "Adam")
    rows = [
        row
        for row in records.where(kind="tuning", method="BSVRB", T=T)
        if any(kind in row["rule"] for kind in kinds) and isinstance(row["loss"], float)
    ]
    setting = (
        min(rows, key=lambda row: row["loss"])["setting"] if rows else records.distinct("setting", method="BSVRB")[0]
    )
    return {"method": "BSVRB", "setting": setting, "T": T, "steps": steps}


def runs(records: Records, longer: bool) -> dict[str, dict[str, Any]]:
    """The curves of one panel: RT-MLMC and the better setting of BSVRB, each with both kinds of steps."""
    T = records.settings["T"]
    T_bsvrb = records.settings["longer"] * T if longer else T
    found = {}
    for steps, words in (("paper", ""), ("other", ", best constant or Adam")):
        found[f"RT-MLMC{words}"] = {"method": "RT-MLMC", "T": T, "steps": steps}
        found[f"BSVRB v2{words}"] = chosen(records, T_bsvrb, steps)
    return found


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(2, sharey=True)
    for panel, longer, column in zip(axes, (False, True), ("t", "seconds"), strict=True):
        for label, which in runs(records, longer).items():
            x = table_of(records, column, **which).mean(0)
            style = "solid" if which["steps"] == "paper" else "dashed"
            losses = table_of(records, "loss", **which)
            figures.band(panel, x, losses, which["method"], label, linestyle=style)
    axes[0].set(xlabel="upper iterations", ylabel="test loss, adapted until y*", title="by iterations")
    axes[1].set(xlabel="seconds (compilation apart)", title="by time")
    for panel in axes:
        figures.legend(panel)
    data = records.distinct("data", kind="curve")[0]
    caption = (
        f"RT-MLMC (K = {records.settings['K']}) and BSVRB v2 on {data}, features of length {meta.NORM:g}; 95 % bands "
        f"over {records.settings['seeds']} seeds. Right: BSVRB runs {records.settings['longer']} times as many "
        "iterations. The paper prints no numbers for this figure."
    )
    rows = [
        (
            label,
            which.get("setting", f"K = {records.settings['K']}"),
            str(which["T"]),
            last_rule(records, which),
            str(mean(table_of(records, "loss", **which)[:, -1])),
            f"{seconds(records, which):.2g}",
        )
        for longer in (False, True)
        for label, which in runs(records, longer).items()
        if longer is False or which["method"] == "BSVRB"
    ]
    columns = ("method", "setting", "iterations", "steps", "test loss", "seconds")
    ends = Table("Last iterates", columns, rows)
    return Rendered([(figures.save(figure, out, "fig2"), caption)], [ends, tuning_table(records)])


def last_rule(records: Records, which: dict[str, Any]) -> str:
    return records.values("rule", kind="curve", **which)[0]


def seconds(records: Records, which: dict[str, Any]) -> float:
    return float(table_of(records, "seconds", **which)[:, -1].mean())


def at_time(records: Records, which: dict[str, Any], budget: float) -> np.ndarray:
    """The loss of each seed at that many seconds, interpolated."""
    x, y = table_of(records, "seconds", **which), table_of(records, "loss", **which)
    return np.array([np.interp(budget, times, losses) for times, losses in zip(x, y, strict=True)])


def claims(records: Records) -> list[Claim]:
    short, long = runs(records, False), runs(records, True)
    seeds = records.settings["seeds"]
    last = lambda which: table_of(records, "loss", **which)[:, -1]
    gaps: list[Interval] = [
        mean(last(short[f"RT-MLMC{words}"]) - last(short[f"BSVRB v2{words}"]))
        for words in ("", ", best constant or Adam")
    ]
    budget = min(seconds(records, long["RT-MLMC"]), seconds(records, long["BSVRB v2"]))
    timed = [
        mean(at_time(records, long[f"RT-MLMC{words}"], budget) - at_time(records, long[f"BSVRB v2{words}"], budget))
        for words in ("", ", best constant or Adam")
    ]
    each = seconds(records, short["RT-MLMC"]) / seconds(records, short["BSVRB v2"])
    return [
        Claim(
            "RT-MLMC beats BSVRB v2 by iterations",
            "a figure without numbers",
            f"test loss of RT-MLMC minus BSVRB v2 after {records.settings['T']} iterations: {gaps[0]}; with the best "
            f"constant or Adam: {gaps[1]}",
            seeds,
            Claim.judge(gaps[0].high < 0 and gaps[1].high < 0, gaps[0].high < 0 or gaps[1].high < 0),
            "The same tasks and images per iteration, the same step rules tried; BSVRB also got the better of two "
            "settings of its trackers.",
        ),
        Claim(
            "RT-MLMC beats BSVRB v2 by time",
            "a figure without numbers",
            f"the same after {budget:.2g} s: {timed[0]}; with the best constant or Adam: {timed[1]}",
            seeds,
            Claim.judge(timed[0].high < 0 and timed[1].high < 0, timed[0].high < 0 or timed[1].high < 0),
            f"An iteration of RT-MLMC takes {each:.3g} times as long here, where there are few tasks; see the item "
            "tasks for many of them.",
        ),
    ]
