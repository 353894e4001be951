"""Runs of the meta-learning experiments, and how they are read back: tuning, curves, noise and bias, differences."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevelax.base.statistics import Interval, mean
from bilevelax.base.text_table import three_digits
from bilevelax.core.problem import X
from bilevelax.diagnostics.bias import relative_bias
from bilevelax.diagnostics.estimates import batch_means
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.reference import reference
from bilevelax.run.records.cells import finite
from bilevelax_paper import figures, meta, training
from bilevelax_paper.claims import Lines
from bilevelax_paper.item import Cell, Drawn, Records, Row, Table
from bilevelax_paper.training import seed_keys

Chosen = dict[str, Any]
Methods = Sequence[meta.Method]
TUNING = 900  # the first seed of those that are used for nothing else
LONGER = "MAML, tuned longer"


def named(method: meta.Method) -> Row:
    """The columns that name a method."""
    return {"method": method.name, "setting": method.setting}


def data_of(settings: Chosen, seed: int, length: Any) -> meta.Data:
    return meta.load(settings["dataset"], settings["small"], seed, length, settings.get("parts", 1))


class Plan(NamedTuple):
    """The runs of a method at one length of features, with the steps that a grid over T finds for ``model``."""

    method: meta.Method
    model: meta.Method
    length: Any
    T: int
    seeds: int
    grid: str

    @property
    def columns(self) -> Row:
        return {**named(self.method), "length": self.length, "T": self.T}

    def rules(self, trials: Sequence[training.Trial], first: bool) -> dict[str, training.Rule]:
        """The paper's rule, and on the first seeds of the method that was tuned the best other one."""
        both = training.both_rules(trials)
        return both if first and self.model.setting == self.method.setting else {"paper": both["paper"]}


def plans(s: Chosen, main: Methods, other: Methods, model: Callable[[meta.Method], meta.Method]) -> list[Plan]:
    """At the length that decides, and fewer and shorter at the others; ``model(method)`` is the one that is tuned."""
    here = [Plan(each, model(each), s["length"], s["T"], s["seeds"], "grid") for each in main]
    there = s["length_T"], s["length_seeds"], "length_grid"
    return here + [Plan(each, model(each), length, *there) for length in s["other_lengths"] for each in other]


def tuner(settings: Chosen) -> Callable[..., tuple[list[training.Trial], float]]:
    """``tuned(method, length, T, grid)``: every rule of a grid, by validation loss after own adaptation, with a split
    and grouping of its own; and the seconds of the processor that it took, with compilation."""

    @functools.cache
    def tuned(method: meta.Method, length: Any, T: int, grid: str) -> tuple[list[training.Trial], float]:
        started, key = time.process_time(), seed_keys(1, training.ROLE_ADAPT)[0]
        data = data_of(settings, TUNING, length)
        loss = lambda xs: meta.losses(data.validate, xs, [key] * len(xs), method.adaptation)
        rules = training.grid(T, **settings[grid])
        trials = training.tune(data.fit, data.x1, method.estimator, rules, loss, checkpoints=(T,), seeds=1)
        return trials, time.process_time() - started

    return tuned


def curve_rows(settings: Chosen, plan: Plan, trials: Sequence[training.Trial]) -> Iterator[Row]:
    """Every seed redraws split and grouping. ``own``: test loss after own adaptation, with a `meta.Look`; of the last x
    ``whole``: after MAML's steps on all images. ``seconds`` are the processor's; the first run compiles."""
    method, times = plan.method, training.checkpoints_of(plan.T, settings["points"])
    for seed, key in enumerate(seed_keys(plan.seeds, training.ROLE_ADAPT)):
        data = data_of(settings, seed, plan.length)
        for steps, rule in plan.rules(trials, seed < settings["other_seeds"]).items():
            columns: Row = {**plan.columns, "steps": steps, "rule": str(rule), "seed": seed}
            started, train = time.process_time(), partial(training.train, data.fit, data.x1, method.estimator, rule)
            found = jax.block_until_ready(train(seed=seed, checkpoints=times))
            seconds, xs, calls = time.process_time() - started, training.unstack(found.x), found.cost.asdict()
            own = meta.losses(data.test, xs, [key] * len(xs), method.adaptation)
            looks = [data.first, *(meta.look(data.fit, data.test, x) for x in xs[1:])]
            for j, t in enumerate(times):
                seen = {name: finite(value) for name, value in looks[j]._asdict().items()}
                counts = {name: int(a[j]) for name, a in calls.items()}
                yield {"kind": "curve", **columns, "t": t, "own": finite(own[j]), **seen, **counts}
            ways = {"validation": (data.validate, method.adaptation)}
            ways |= {"whole": (data.test, method.whole)} if method.whole else {}
            last: Row = {name: finite(meta.losses(on, xs[-1:], [key], how)[0]) for name, (on, how) in ways.items()}
            last |= {"seconds": round(seconds, 3), "tuned_at": plan.model.setting, "data": data.source}
            yield {"kind": "end", **columns, "t": times[-1], "tight": seen["tight"], **last}


def tuned_runs(settings: Chosen, tuned: Any, plans: Sequence[Plan], name: str | None = None) -> Iterator[Row]:
    """Tuning, and the curves of the plan of least validation loss: under a name, where there are several."""
    tried = [tuned(plan.model, plan.length, plan.T, plan.grid) for plan in plans]
    best = int(np.argmin([min(trial.loss for trial in trials) for trials, _ in tried]))
    plan = plans[best] if name is None else plans[best]._replace(method=plans[best].method._replace(name=name))
    runs, seconds = sum(len(trials) for trials, _ in tried), sum(seconds for _, seconds in tried)
    if plan.model.setting == plan.method.setting:
        yield from training.tuning_rows(tried[best][0], **plan.columns)
        yield {"kind": "budget", **plan.columns, "runs": runs, "seconds": round(seconds, 2)}
    yield from curve_rows(settings, plan, tried[best][0])


def constants(settings: Chosen) -> Row:
    """What all cells depend on."""
    fixed = {name: getattr(meta, name) for name in ("LAM", "HELD_OUT", "TASKS", "IMAGES", "TERMS")}
    return {**fixed, **{name: settings[name] for name in ("dataset", "small", "points", "other_seeds")}}


def cells(settings: Chosen, planned: Sequence[Plan], search: Methods = ()) -> Iterator[Cell]:
    """Tuning and curves of each plan; one method tuned longer; noise and bias of gradients at the last x of the first.

    A cell depends on what it names alone: fewer or more plans leave the others as they are.
    """
    tuned, main, of = tuner(settings), planned[0], constants(settings)
    given = lambda plan: {**of, **plan.columns, "tuned_at": plan.model.setting, "seeds": plan.seeds}
    measured = [plan.method for plan in planned if plan.length == main.length]

    def one_gradient() -> list[Row]:
        data, (trials, _) = data_of(settings, 0, main.length), tuned(main.model, main.length, main.T, "grid")
        rule, estimator = training.both_rules(trials)["paper"], main.method.estimator
        found = training.train(data.fit, data.x1, estimator, rule, seed=0, checkpoints=(main.T,))
        return noise_rows(data, measured, training.unstack(found.x)[-1], settings["calls"])

    for plan in planned:
        name = f"{plan.method.name}, {plan.method.setting}, {words_of(plan.length)}"
        yield Cell(name, partial(tuned_runs, settings, tuned, [plan]), {**given(plan), "grid": settings[plan.grid]})
    if search:
        asked = {"search": settings["search"], "methods": [method.setting for method in search]}
        candidates = [main._replace(method=method, model=method, grid="search") for method in search]
        yield Cell(LONGER, partial(tuned_runs, settings, tuned, candidates, LONGER), {**given(main), **asked})
    if settings.get("calls"):
        asked = {"measured": [method[:2] for method in measured], "calls": settings["calls"], "grid": settings["grid"]}
        yield Cell("noise and bias of one gradient", one_gradient, {**given(main), **asked})


def words_of(length: Any) -> str:
    return f"{meta.RAW} features" if length == meta.RAW else f"features of length {length:g}"


def noise_rows(data: meta.Data, methods: Sequence[meta.Method], x: X, calls: int) -> list[Row]:
    """``sd`` of one gradient v at x; ``bias``, |E v - grad F| / |grad F|, with its interval; ``norm``: |grad F|."""
    key = seed_keys(1, training.ROLE_RUN)[0]
    exact = reference(key, data.fit, x, data.fit.n_contexts or 0, 0).grad  # on all images of all tasks
    norm = float(np.linalg.norm(exact))

    def row(method: meta.Method) -> Row:
        found = flat_rows(batch_means(key, data.fit, x, estimator=method.estimator, batches=calls))
        bias, sd = relative_bias(found - exact, norm, 0.0), float(np.sqrt(found.var(0, ddof=1).sum()))
        values = {"sd": sd, "norm": norm, "bias": bias.estimate, "bias_low": bias.low, "bias_high": bias.high}
        told = {name: finite(value) for name, value in values.items()}
        return {"kind": "noise", **named(method), "calls": calls, **told}

    return list(map(row, methods))


KINDS = {"paper": "the paper's steps", "other": "the best constant or Adam"}  # value of the column ``steps``: in words
Which = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]  # columns that pick runs, or a function of the steps
ADAPTED = {"own": "own adaptation", "tight": "until y*"}


def at(records: Records, length: Any = None) -> Records:
    """The rows of one length of features, by default of the one that decides."""
    length = records.settings["length"] if length is None else length
    return Records([row for row in records.rows if row.get("length", length) == length], records.manifest)


def elsewhere(records: Records, lines: Callable[[Records], Lines]) -> Lines:
    """The same lines at the other lengths of features, where there are runs."""
    parts = {length: at(records, length) for length in records.settings["other_lengths"]}
    found = {length: lines(part) for length, part in parts.items() if part.where(kind="end")}
    return {f"{what}, {words_of(length)}": line for length, of in found.items() for what, line in of.items()}


def curve(records: Records, column: str, **equal: Any) -> tuple[list[int], np.ndarray]:
    """(iterations, values of shape (seeds, iterations))."""
    rows = records.where(kind="curve", **equal)
    t, seeds = (sorted({row[name] for row in rows}) for name in ("t", "seed"))
    value = {(row["seed"], row["t"]): row[column] for row in rows}
    return t, np.array([[value[seed, time] for time in t] for seed in seeds])


def losses(records: Records, column: str, t: int | None = None, **equal: Any) -> np.ndarray:
    """A column of the last iterate for each seed; ``own`` may be that of iteration t."""
    if column != "own" or not records.where(kind="curve", **equal):
        return np.asarray(records.values(column, kind="end", **equal))
    times, found = curve(records, column, **equal)
    return found[:, -1 if t is None else times.index(t)]


def settings_of(records: Records, method: str) -> list[str]:
    """In the order of the numbers in them: K, m, gamma."""
    numbers = lambda setting: [float(part.rpartition("= ")[2]) for part in setting.split(", ")]
    return sorted(records.distinct("setting", kind="curve", method=method), key=numbers)


def by_steps(of: Callable[[str], Any]) -> dict[str, Any]:
    """A value for each kind of steps, by its words, where it has one."""
    return {words: value for steps, words in KINDS.items() if (value := of(steps)) is not None}


def difference(
    records: Records, column: str, one: Which, other: Which, t: int | None = None, its: str | None = None
) -> dict[str, Interval]:
    """Loss of one minus loss of the other (in column ``its``), paired by seed, with the steps that both ran."""
    at_steps = lambda which, steps: which(steps) if callable(which) else which
    of = lambda name, which, steps: losses(records, name, t, steps=steps, **at_steps(which, steps))

    def gap(steps: str) -> Interval | None:
        a, b = of(column, one, steps), of(its or column, other, steps)
        return mean(a - b) if a.size and b.size else None

    return by_steps(gap)


def best(records: Records, method: str, among: list[str]) -> Callable[[str], dict[str, Any]]:
    """For each kind of steps the setting of least validation loss: the test chooses nothing."""

    def chosen(steps: str) -> dict[str, Any]:
        found = {name: losses(records, "validation", method=method, setting=name, steps=steps) for name in among}
        means = {name: each.mean() for name, each in found.items() if each.size}
        return {"method": method, "setting": min(means, key=lambda name: means[name]) if means else None}

    return chosen


def draw(records: Records, methods: Mapping[str, str | None], panel: Any, column: str) -> None:
    """Curves with their bands of these methods: of the one setting that is named, or of all, from light to full."""
    for method, only in methods.items():
        names = [only] if only else settings_of(records, method)
        for i, setting in enumerate(names):
            t, found = curve(records, column, method=method, setting=setting, steps="paper")
            label = setting if method == next(iter(methods)) else f"{method}, {setting}"
            figures.band(panel, t, found, method, label, color=figures.colour(method, i, len(names)))
    panel.set(xlabel="upper iterations")


def drawn(records: Records, columns: Mapping[str, Mapping[str, str | None]], where: str) -> Drawn:
    """What Figures 1 and 4 show: columns of methods (see `draw`), last losses, tuning, and one gradient at a place."""
    figure, axes = figures.panels(len(columns) * len(ADAPTED), rows=len(ADAPTED), sharey="row")
    parts = itertools.product(ADAPTED.items(), columns.items())
    for panel, ((name, words), (title, methods)) in zip(axes, parts, strict=True):
        draw(at(records), methods, panel, name)
        panel.set(title=f"{title}, {words}", ylabel="test loss")
    for i, panel in enumerate(axes[: len(columns)]):
        figures.legend(panel, room=0.6 * (i == 0))  # a row shares one axis, and the rows their colours
    told = {"data": records.values("data")[0], "images": meta.IMAGES}
    return Drawn(figure, [ends_table(records), *noise_tables(records, where)], told)


def ends_table(records: Records, *more: str) -> Table:
    """The last iterates, with F and its gradient there, oracle calls, and what tuning took: as many runs for all."""
    rows, calls = [], ("xi", "eta", "grad_f", "grad_g", "hess_g", "cross_g")
    texts = lambda values: str(mean(values)) if len(values) else "-"
    for row in records.where(kind="end", seed=0):
        shared = {name: row[name] for name in ("method", "length", "T", *more)}
        which = {**shared, "setting": row["setting"], "steps": row["steps"]}
        (spent,) = records.where(kind="budget", setting=row["tuned_at"], **shared)
        last = lambda name: np.asarray(records.values(name, kind="curve", t=row["t"], **which))  # noqa: B023 (used at once)
        along, ends = curve(records, "F", **which)[1].mean(0), (last("slope").mean(), last("accuracy").mean())
        seen = ", ".join(f"{F:.3f}" for F in along), *(f"{value:.3g}" for value in ends)
        each = ", ".join(f"{last(name).mean() / row['t']:.0f}" for name in calls)
        rule = row["rule"] + ("" if row["tuned_at"] == row["setting"] else f" (tuned at {row['tuned_at']})")
        what = f"{row['setting']}, {words_of(row['length'])}" + "".join(f", {name} = {row[name]:g}" for name in more)
        adapted = (texts(losses(records, name, **which)) for name in (*ADAPTED, "whole"))
        time = f"{np.median(losses(records, 'seconds', **which)):.2g}", "{runs}, {seconds:.0f} s".format(**spent)
        rows.append((row["method"], what, rule, str(row["t"]), str(len(last("F"))), *adapted, *seen, each, *time))
    by = "test loss, own adaptation", "until y*", "own steps, all images"
    look = "F along the run", "|grad F|", "test accuracy until y*", f"calls an iteration: {', '.join(calls)}"
    times = "seconds of a run, of the processor", "tuning: runs, processor time"
    return Table("Last iterates", ("method", "", "steps", "t", "seeds", *by, *look, *times), rows)


def noise_tables(records: Records, where: str) -> list[Table]:
    """Noise and bias of one gradient at that place, bold where a bias is told from 0; none at scale smoke."""
    rows = records.where(kind="noise")
    if not rows:
        return []
    bias = lambda row: "{bias:.2g} [{bias_low:.2g}, {bias_high:.2g}]".format(**row)
    told = lambda row: f"**{bias(row)}**" if row["bias_low"] > 0 else bias(row)
    sizes = lambda row: (three_digits(row["sd"]), f"{row['sd'] / row['norm']:.3g}")
    shown = [(row["method"], row["setting"], *sizes(row), told(row)) for row in rows]
    title = f"One gradient at {where}, {rows[0]['calls']} calls; |grad F| = {three_digits(rows[0]['norm'])} there"
    return [Table(title, ("method", "", "standard deviation", "the same / |grad F|", "bias / |grad F|"), shown)]
