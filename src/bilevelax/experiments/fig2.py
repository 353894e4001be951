"""Figure 2: RT-MLMC against BSVRB v2, by iterations and by time.

Seconds of an iteration are measured apart from the runs, the methods taking turns, and the least of the turns counts:
what else a machine does can only add.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
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
from bilevelax.experiments._meta_views import tuning
from bilevelax.experiments._statistics import Interval, mean, number
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


MANY = "It does hold with many tasks: see the item tasks."
TIMED, TURNS = 40, 3  # iterations, and how often all methods have their turn
OURS = ("RT-MLMC", meta.QUIET)
KINDS = {"paper": "", "other": ", best constant or Adam"}


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
    data = partial(meta.load, settings["dataset"], settings["small"])

    @functools.cache
    def trials(method: meta.Method, T: int) -> list[training.Trial]:
        return meta.tuned(data(), method, T, settings["points"], settings["grid"])

    def work(method: meta.Method, T: int) -> list[Row]:
        points = training.checkpoints_of(T, settings["points"])
        rows = [{**row, "T": T} for row in meta.tuning_rows(method, trials(method, T))]
        for which, rule in meta.both_rules(trials(method, T)).items():
            rows += loss_curve(data(), method, rule, seeds=seeds, checkpoints=points, steps_of=which)
        return rows

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


def loss_curve(
    data: meta.Data,
    method: meta.Method,
    rule: training.Rule,
    *,
    seeds: int,
    checkpoints: tuple[int, ...],
    steps_of: str,
) -> list[Row]:
    """Test losses after adaptation until y* at each checkpoint."""
    T = checkpoints[-1]
    columns = {"kind": "curve", "method": method.name, "setting": method.setting, "steps": steps_of, "rule": str(rule)}
    columns |= {"data": data.source}
    rows = []
    for seed, key in enumerate(seed_keys(seeds, training.ROLE_ADAPT)):
        curve = training.train(data.fit, data.x1, method.estimator, rule, seed=seed, checkpoints=checkpoints)
        xs = training.unstack(curve.x)
        losses = meta.losses(data.test, xs, [key] * len(xs), meta.UNTIL_Y_STAR)
        for t, loss in zip(checkpoints, losses, strict=True):
            rows.append({**columns, "T": T, "seed": seed, "t": t, "loss": float(loss)})
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
    """The curves of one panel: both RT-MLMC and the better setting of BSVRB, each with both kinds of steps."""
    T = records.settings["T"]
    T_bsvrb = records.settings["longer"] * T if longer else T
    found = {}
    for steps, words in KINDS.items():
        for name in OURS:
            found[f"{name}{words}"] = {"method": name, "T": T, "steps": steps}
        found[f"BSVRB v2{words}"] = chosen(records, T_bsvrb, steps)
    return found


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(2, sharey=True)
    for panel, longer, column in zip(axes, (False, True), ("t", "seconds"), strict=True):
        for label, which in runs(records, longer).items():
            x = table_of(records, "t", **which)[0] * (1.0 if column == "t" else each(records, which))
            style = "solid" if which["steps"] == "paper" else "dashed"
            losses = table_of(records, "loss", **which)
            figures.band(panel, x, losses, which["method"], label, linestyle=style)
    axes[0].set(xlabel="upper iterations", ylabel="test loss, adapted until y*", title="by iterations")
    axes[1].set(xlabel="seconds (compilation apart)", title="by time")
    for panel, room in zip(axes, (0.45, 0.0), strict=True):  # they share one axis
        figures.legend(panel, room=room)
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
    return Rendered([(figures.save(figure, out, "fig2"), caption)], [ends, tuning(records, "T")])


def last_rule(records: Records, which: dict[str, Any]) -> str:
    return records.values("rule", kind="curve", **which)[0]


def each(records: Records, which: dict[str, Any]) -> float:
    """Seconds of an iteration."""
    where = {name: which[name] for name in ("method", "setting") if name in which}
    return min(records.values("seconds", kind="time", **where))


def seconds(records: Records, which: dict[str, Any]) -> float:
    """Of the whole run."""
    return each(records, which) * which["T"]


def at_time(records: Records, which: dict[str, Any], budget: float) -> np.ndarray:
    """The loss of each seed at that many seconds, interpolated."""
    times = table_of(records, "t", **which)[0] * each(records, which)
    return np.array([np.interp(budget, times, losses) for losses in table_of(records, "loss", **which)])


def gaps(records: Records, name: str, budget: float | None = None) -> list[Interval]:
    """Test loss of ``name`` minus BSVRB v2, both kinds of steps: after T iterations, or after ``budget`` seconds."""
    which = runs(records, budget is not None)
    last = lambda label: table_of(records, "loss", **which[label])[:, -1]
    timed = lambda label: at_time(records, which[label], budget or 0.0)
    loss = last if budget is None else timed
    return [mean(loss(f"{name}{words}") - loss(f"BSVRB v2{words}")) for words in KINDS.values()]


def judged(records: Records, claim: str, budget: float | None, after: str, why: str) -> Claim:
    """The verdict is on the paper's RT-MLMC; ``partly`` where only one kind of steps or less noise makes it hold."""
    paper, quiet = (gaps(records, name, budget) for name in OURS)
    return Claim(
        claim,
        "a figure without numbers",
        f"test loss minus that of BSVRB v2 {after}: RT-MLMC {paper[0]}, with the best constant or Adam {paper[1]}; "
        f"with less noise {quiet[0]}, with the best constant or Adam {quiet[1]}",
        records.settings["seeds"],
        Claim.judge(all(gap.high < 0 for gap in paper), any(gap.high < 0 for gap in (*paper, *quiet))),
        why,
    )


def claims(records: Records) -> list[Claim]:
    short, long = runs(records, False), runs(records, True)
    budget = min(seconds(records, long["RT-MLMC"]), seconds(records, long["BSVRB v2"]))
    longer = ", ".join(f"{name} {each(records, short[name]) / each(records, short['BSVRB v2']):.2g}" for name in OURS)
    spread = {name: float(table_of(records, "loss", **short[name])[:, -1].std(ddof=1)) for name in (*OURS, "BSVRB v2")}
    noise = ", ".join(f"{name} {number(value)}" for name, value in spread.items())
    return [
        judged(
            records,
            "RT-MLMC beats BSVRB v2 by iterations",
            None,
            f"after {records.settings['T']} iterations",
            f"Noise: the standard deviation of the last loss over seeds is {noise}, with the paper's steps. Less noise "
            "means the whole Neumann series instead of one random product of it, and levels spread evenly over the "
            f"{meta.TASKS} tasks of an iteration. All see as many tasks and images per iteration and try the same step "
            "rules; BSVRB also gets the better of two settings of its trackers. "
            f"{MANY}",
        ),
        judged(
            records,
            "RT-MLMC beats BSVRB v2 by time",
            budget,
            f"after {budget:.2g} s",
            f"An iteration takes so many times as long as one of BSVRB v2: {longer}. There are only 20 tasks, each of "
            f"which BSVRB visits every {20 // meta.TASKS} iterations. {MANY}",
        ),
    ]
