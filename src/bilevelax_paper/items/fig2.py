"""Figure 2: RT-MLMC against BSVRB v2, by iterations and by time (the least of several turns, apart from the runs)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bilevelax.base.statistics import Interval, mean
from bilevelax.base.timing import interleaved
from bilevelax.estimators.bsvrb import bsvrb
from bilevelax.run.records.cells import finite
from bilevelax_paper import figures, meta, training
from bilevelax_paper import meta_runs as runs
from bilevelax_paper.claims import Found, below, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row, Table
from bilevelax_paper.meta_runs import KINDS, by_kinds, by_steps, curve

CONFIG = Config.read(__file__)
OURS = ("RT-MLMC", meta.QUIET)
TIMED, TURNS = 40, 3  # iterations, and how often all methods have their turn


def rivals(settings: dict[str, Any]) -> list[tuple[meta.Method, int]]:
    """(method, iterations): RT-MLMC, also with less noise; BSVRB as in theory and in its public scripts, and longer."""
    shared = {"blocks": meta.TASKS, "batch": meta.IMAGES}
    theory = meta.Method("BSVRB", "v2, a = b = 0.5", bsvrb(2, **shared), meta.UNTIL_Y_STAR)
    faster = bsvrb(2, a=0.9, b=0.9, c=1.0, **shared)
    scripts, T = meta.Method("BSVRB", "v2, a = b = 0.9, c = 1", faster, meta.UNTIL_Y_STAR), settings["T"]
    ours = [(one(settings["K"])._replace(adaptation=meta.UNTIL_Y_STAR), T) for one in (meta.rt, meta.quiet)]
    return [*ours, *((method, n) for method in (theory, scripts) for n in (T, settings["longer"] * T))]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    trials = runs.tuner(settings)

    def work(method: meta.Method, T: int) -> list[Row]:
        """Test losses after adaptation until y* at each checkpoint, with both kinds of steps."""
        data, found, times = runs.data_of(settings), trials(method, T), training.checkpoints_of(T, settings["points"])
        rows = training.tuning_rows(found, **runs.named(method), T=T)
        for columns, key, run in runs.runs(data, method, found, seeds, times):
            xs = training.unstack(run.x)
            losses = meta.losses(data.test, xs, [key] * len(xs), meta.UNTIL_Y_STAR)
            columns = {"kind": "curve", **columns, "data": data.source, "T": T}
            rows += [{**columns, "t": t, "loss": finite(v)} for t, v in zip(times, losses, strict=True)]
        return rows

    for method, T in rivals(settings):
        yield Cell(f"{method.name}, {method.setting}, T = {T}", partial(work, method, T))
    yield Cell("seconds of an iteration", partial(timed, settings))


def timed(settings: dict[str, Any]) -> list[Row]:
    """By turns, compiled before, without evaluations."""
    data, times = runs.data_of(settings), training.checkpoints_of(TIMED, settings["points"])
    train = partial(training.train, data.fit, data.x1, rule=training.Rule("constant", 0.01), seed=0, checkpoints=times)
    methods = {method[:2]: method.estimator for method, _ in rivals(settings)}  # by name and setting
    calls = {name: lambda turn, estimator=estimator: train(estimator) for name, estimator in methods.items()}
    rows: list[Row] = []
    for turn, seconds in enumerate(zip(*interleaved(calls, TURNS).values(), strict=True)):
        for (name, setting), each in zip(methods, seconds, strict=True):
            rows.append({"kind": "time", "method": name, "setting": setting, "turn": turn, "seconds": each / TIMED})
    return rows


def compared(records: Records, steps: str, longer: bool) -> list[dict[str, Any]]:
    """The curves of one panel: both RT-MLMC and both settings of BSVRB, that of least validation loss last."""
    T = records.settings["T"]
    T_bsvrb = records.settings["longer"] * T if longer else T
    rules = set(records.values("rule", kind="curve", method="BSVRB", T=T_bsvrb, steps=steps))
    rows = [row for row in records.where(kind="tuning", method="BSVRB", T=T_bsvrb) if row["rule"] in rules]
    loss = lambda row: row["loss"] if isinstance(row["loss"], float) else float("inf")  # a word where it diverged
    best = min(rows, key=loss)["setting"]
    settings = sorted(records.distinct("setting", kind="curve", method="BSVRB"), key=lambda name: name == best)
    ours = [{"method": name, "T": T, "steps": steps} for name in OURS]
    return ours + [{"method": "BSVRB", "setting": name, "T": T_bsvrb, "steps": steps} for name in settings]


def each(records: Records, which: dict[str, Any]) -> float:
    """Seconds of an iteration."""
    where = {name: which[name] for name in ("method", "setting") if name in which}
    return min(records.values("seconds", kind="time", **where))


def last(records: Records, which: dict[str, Any]) -> np.ndarray:
    """The last loss of each seed."""
    return curve(records, "loss", **which)[1][:, -1]


def at_time(records: Records, budget: float, which: dict[str, Any]) -> np.ndarray:
    """The loss of each seed at that many seconds, interpolated."""
    t, found = curve(records, "loss", **which)
    return np.array([np.interp(budget, np.multiply(t, each(records, which)), losses) for losses in found])


def gaps(records: Records, i: int, longer: bool, loss: Callable[[dict[str, Any]], np.ndarray]) -> dict[str, Interval]:
    """Loss of run i of a panel minus that of the chosen BSVRB."""
    pair = lambda steps: [loss(compared(records, steps, longer)[j]) for j in (i, -1)]
    return by_steps(lambda steps: mean(np.subtract(*pair(steps))))


def by_iterations(records: Records) -> Found:
    T, at_end = records.settings["T"], partial(last, records)
    *ours, _, rival = compared(records, "paper", longer=True)
    spread = lambda which: {KINDS["paper"]: float(last(records, which).std(ddof=1))}
    what = "standard deviation of the last loss over seeds"
    after = f"minus BSVRB v2 after {T} iterations"
    lines = {f"{name} {after}": gaps(records, i, False, at_end) for i, name in enumerate(OURS)}
    spreads = {f"{what}, {which['method']}": spread(which) for which in (*ours, {**rival, "T": T})}
    return Found(lines, spreads, {"tasks": meta.TASKS})


def by_time(records: Records) -> Found:
    T, longer = records.settings["T"], records.settings["longer"]
    *ours, _, rival = compared(records, "paper", longer=True)
    budget = min(each(records, which) * which["T"] for which in (ours[0], rival))
    then, at_end = partial(at_time, records, budget), partial(last, records)
    lines = {f"{name} minus BSVRB v2 after {budget:.2g} s": gaps(records, i, True, then) for i, name in enumerate(OURS)}
    what = "seconds of an iteration, times those of BSVRB v2"
    slower = {f"{what}, {one['method']}": {KINDS["paper"]: each(records, one) / each(records, rival)} for one in ours}
    late = {f"RT-MLMC after {T} iterations minus BSVRB v2 after {longer * T}": gaps(records, 0, True, at_end)}
    tasks = meta.SMALL_TASKS if records.settings["small"] else meta.ALL_TASKS
    return Found(lines, {**late, **slower}, {"tasks": tasks, "visits": tasks // meta.TASKS})


RULE = below(first=len(KINDS))  # the paper's RT-MLMC decides; less noise can only make it partly
CLAIMS = claims_of(CONFIG, {by_iterations: RULE, by_time: RULE})


def render(records: Records) -> Drawn:
    columns = {"by iterations": partial(draw, records, False), "by time": partial(draw, records, True)}
    figure = by_kinds(columns, "test loss, adapted until y*")
    return Drawn(figure, [ends(records)], runs.caption_words(records))


def draw(records: Records, longer: bool, panel: Any, steps: str) -> None:
    """By time where BSVRB runs longer, else by iterations."""
    all_runs = compared(records, steps, longer)
    for which in all_runs:
        t, losses = curve(records, "loss", **which)
        x = [time * (each(records, which) if longer else 1.0) for time in t]
        style = "solid" if which["method"] in OURS or which is all_runs[-1] else "dotted"
        label = which["method"] if which["method"] in OURS else f"BSVRB {which['setting']}"
        figures.band(panel, x, losses, which["method"], label, linestyle=style)
    panel.set(xlabel="seconds (compilation apart)" if longer else "upper iterations")


def ends(records: Records) -> Table:
    s, rows = records.settings, []
    short, long = ([run for steps in KINDS for run in compared(records, steps, longer)] for longer in (False, True))
    for which in [*short, *(run for run in long if run["method"] == "BSVRB")]:
        setting, rule = which.get("setting", f"K = {s['K']}"), records.values("rule", kind="curve", **which)[0]
        loss, seconds = str(mean(last(records, which))), f"{each(records, which) * which['T']:.2g}"
        rows.append((which["method"], setting, str(which["T"]), rule, loss, seconds))
    return Table("Last iterates", ("method", "setting", "iterations", "steps", "test loss", "seconds"), rows)
