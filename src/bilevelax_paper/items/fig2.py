"""Figure 2: RT-MLMC against BSVRB v2, at equal iterations and at equal budgets of processor time.

A budget is as many iterations as fit into it at the seconds that an iteration takes, which the settings fix and the
records measure. Each method is tuned for each budget, with as many configurations as the other.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bilevelax.estimators.bsvrb import bsvrb
from bilevelax_paper import figures, meta
from bilevelax_paper import meta_runs as runs
from bilevelax_paper.claims import Found, Lines, below, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row
from bilevelax_paper.meta_runs import difference

CONFIG = Config.read(__file__)
OURS, RIVAL = {"method": "RT-MLMC"}, {"method": "BSVRB"}


def candidates(settings: dict[str, Any]) -> dict[str, list[meta.Method]]:
    """The settings of both methods that tuning chooses from, each with every step rule."""

    def rival(a: float, b: float, c: float | None) -> meta.Method:
        estimator = bsvrb(2, a=a, b=b, c=c, blocks=meta.TASKS, batch=meta.IMAGES)
        return meta.Method("BSVRB", f"a = b = {a:g}" + (f", c = {c:g}" if c else ""), estimator, meta.UNTIL_Y_STAR)

    quiet = [meta.quiet(K)._replace(setting=f"K = {K}, less noise") for K in settings["K_quiet"]]
    ours = [method._replace(adaptation=meta.UNTIL_Y_STAR) for method in (*map(meta.rt, settings["K"]), *quiet)]
    return {"RT-MLMC": ours, "BSVRB": [rival(a, a, c or None) for a, c in settings["trackers"]]}


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    for M, budget in settings["budgets"]:
        here = {**settings, "parts": M // settings["tasks"]}
        for name, methods in candidates(settings).items():
            seconds = settings["seconds"][f"{name}, M = {M}"]
            T = [round(budget / each) for each in seconds] if budget else [settings["T"]] * len(methods)
            work = partial(compared, here, list(zip(methods, T, strict=True)), seeds, {"M": M, "budget": budget})
            asked = {"M": M, "T": T, "settings": [method.setting for method in methods], "grid": settings["grid"]}
            of = {**runs.constants(settings), **asked, "length": settings["length"]}
            yield Cell(f"{name}, {M} tasks, {words_of(settings, budget)}", work, of)


def words_of(settings: dict[str, Any], budget: float) -> str:
    return f"{budget:g} s" if budget else f"{settings['T']} iterations"


def compared(settings: Row, methods: list[tuple[meta.Method, int]], seeds: int, columns: Row) -> Iterator[Row]:
    plan = lambda method, T: runs.Plan(method, method, settings["length"], T, seeds, "grid")
    name = methods[0][0].name.partition(",")[0]
    for row in runs.tuned_runs(settings, runs.tuner(settings), [plan(*each) for each in methods], name):
        yield {**row, **columns}


def part(records: Records, M: int, budget: float) -> Records:
    return Records(records.where(M=M, budget=budget), records.manifest)


def gaps(records: Records, budgets: list[tuple[int, float]]) -> Lines:
    words = lambda M, budget: f"RT-MLMC minus BSVRB v2, {M} tasks, {words_of(records.settings, budget)}"
    return {words(*each): difference(part(records, *each), "tight", OURS, RIVAL) for each in budgets}


def by_iterations(records: Records) -> Found:
    """The first number of tasks decides."""
    return Found(gaps(records, [each for each in records.settings["budgets"] if not each[1]]))


def by_time(records: Records) -> Found:
    """The largest budget at the first number of tasks decides."""
    s = records.settings
    budgets = sorted((each for each in s["budgets"] if each[1]), key=lambda each: (each[0], -each[1]))
    return Found(gaps(records, budgets), {}, {"visits": s["tasks"] // meta.TASKS, "tasks": s["tasks"]})


CLAIMS = claims_of(CONFIG, {by_iterations: below(), by_time: below()})


def render(records: Records) -> Drawn:
    figure, axes = figures.panels(len(records.settings["budgets"]), sharey=True)
    for panel, (M, budget) in zip(axes, records.settings["budgets"], strict=True):
        for which in (OURS, RIVAL):
            t, found = runs.curve(part(records, M, budget), "tight", steps="paper", **which)
            x = np.multiply(t, budget / t[-1]) if budget else np.asarray(t)
            figures.band(panel, list(x), found, which["method"])
        words = "seconds of the processor" if budget else "upper iterations"
        panel.set(title=f"{M} tasks, {words_of(records.settings, budget)}", xlabel=words)
    axes[0].set(ylabel="test loss, adapted until y*")
    figures.legend(axes[0], room=0.2)
    return Drawn(figure, [runs.ends_table(records, "M", "budget")], {"data": records.values("data")[0]})
