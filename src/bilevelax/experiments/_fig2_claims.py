"""What Figure 2 claims, by iterations and by time, on both kinds of steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.experiments import _meta as meta
from bilevelax.experiments._items import Claim, Records
from bilevelax.experiments._meta_views import KINDS, below, in_words, tasks_of
from bilevelax.experiments._statistics import Interval, mean, number

OURS = ("RT-MLMC", meta.QUIET)


def table_of(records: Records, column: str, **equal: Any) -> np.ndarray:
    """(seeds, checkpoints)."""
    return np.array([records.values(column, kind="curve", seed=seed, **equal) for seed in records.distinct("seed")])


def chosen(records: Records, T: int, steps: str) -> str:
    """The setting of BSVRB with the least validation loss of these iterations."""
    rules = set(records.values("rule", kind="curve", method="BSVRB", T=T, steps=steps))
    rows = [row for row in records.where(kind="tuning", method="BSVRB", T=T) if row["rule"] in rules]
    loss = lambda row: row["loss"] if isinstance(row["loss"], float) else float("inf")  # a word where it diverged
    return min(rows, key=loss)["setting"]


def runs(records: Records, steps: str, longer: bool) -> list[dict[str, Any]]:
    """The curves of one panel: both RT-MLMC and both settings of BSVRB, the chosen one last."""
    T = records.settings["T"]
    T_bsvrb = records.settings["longer"] * T if longer else T
    best = chosen(records, T_bsvrb, steps)
    settings = sorted(records.distinct("setting", kind="curve", method="BSVRB"), key=lambda name: name == best)
    return [
        *({"method": name, "T": T, "steps": steps} for name in OURS),
        *({"method": "BSVRB", "setting": name, "T": T_bsvrb, "steps": steps} for name in settings),
    ]


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


def gaps(records: Records, name: str, budget: float | None = None) -> dict[str, Interval]:
    """Test loss of ``name`` minus that of the chosen BSVRB: after T iterations, or after ``budget`` seconds."""

    def loss(which: dict[str, Any]) -> np.ndarray:
        return table_of(records, "loss", **which)[:, -1] if budget is None else at_time(records, which, budget)

    found = {}
    for steps in KINDS:
        all_runs = runs(records, steps, budget is not None)
        found[steps] = mean(loss(all_runs[OURS.index(name)]) - loss(all_runs[-1]))
    return found


def judged(records: Records, claim: str, budget: float | None, after: str, why: str) -> Claim:
    """The verdict is on the paper's RT-MLMC; ``partly`` where only one kind of steps or less noise makes it hold."""
    paper, quiet = (gaps(records, name, budget) for name in OURS)
    return Claim(
        claim,
        "a figure without numbers",
        f"test loss minus that of BSVRB v2 {after}; RT-MLMC: {in_words(paper)}; with less noise: {in_words(quiet)}",
        records.settings["seeds"],
        Claim.judge(all(below(paper)), any([*below(paper), *below(quiet)])),
        why,
    )


def late(records: Records) -> str:
    """Does the lead of one or the other stay when both have run to their ends?"""
    gap = lambda steps: mean(
        table_of(records, "loss", **runs(records, steps, True)[0])[:, -1]
        - table_of(records, "loss", **runs(records, steps, True)[-1])[:, -1]
    )
    T, longer = records.settings["T"], records.settings["longer"]
    return f"RT-MLMC after {T} iterations minus BSVRB v2 after {longer * T}: {in_words({s: gap(s) for s in KINDS})}. "


def claims(records: Records) -> list[Claim]:
    all_runs = runs(records, "paper", True)
    ours, rival = all_runs[: len(OURS)], all_runs[-1]
    budget = min(seconds(records, ours[0]), seconds(records, rival))
    slower = ", ".join(f"{run['method']} {each(records, run) / each(records, rival):.2g}" for run in ours)
    short = [*ours, {**rival, "T": records.settings["T"]}]
    spread = {run["method"]: float(table_of(records, "loss", **run)[:, -1].std(ddof=1)) for run in short}
    noise = ", ".join(f"{name} {number(value)}" for name, value in spread.items())
    tasks = tasks_of(records)
    return [
        judged(
            records,
            "RT-MLMC beats BSVRB v2 by iterations",
            None,
            f"after {records.settings['T']} iterations",
            f"Standard deviation of the last loss over seeds, with {KINDS['paper']}: {noise}. Less noise means the "
            "whole Neumann series instead of one random product of it, and levels spread evenly over the "
            f"{meta.TASKS} tasks of an iteration. All see as many tasks and images per iteration and try the same step "
            "rules, on one seed; BSVRB also gets the better of two settings of its trackers, by validation loss.",
        ),
        judged(
            records,
            "RT-MLMC beats BSVRB v2 by time",
            budget,
            f"after {budget:.2g} s",
            f"An iteration takes so many times as long as one of BSVRB v2: {slower}. {late(records)}There are "
            f"{tasks} tasks, each of which BSVRB visits every {tasks // meta.TASKS} iterations; the item tasks "
            "measures how both methods depend on that number, on a quadratic.",
        ),
    ]
