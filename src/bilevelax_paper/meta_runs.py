"""Runs of the meta-learning experiments, and how they are read back: tuning, curves, noise and bias, differences."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bilevelax.base.statistics import Interval, mean
from bilevelax.base.text_table import three_digits
from bilevelax.core.problem import Key, X
from bilevelax.diagnostics.bias import relative_bias
from bilevelax.diagnostics.estimates import batch_means
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.reference import reference
from bilevelax.run.records.cells import finite
from bilevelax_paper import figures, meta, training
from bilevelax_paper.item import Cell, Drawn, Records, Row, Table
from bilevelax_paper.training import seed_keys

Chosen = dict[str, Any]
Methods = Sequence[meta.Method]
Times = Sequence[int]
Trials = Sequence[training.Trial]


def named(method: meta.Method) -> Row:
    """The columns that name a method."""
    return {"method": method.name, "setting": method.setting}


def data_of(settings: Chosen) -> meta.Data:
    return meta.load(settings["dataset"], settings["small"])


def tuner(settings: Chosen) -> Callable[..., list[training.Trial]]:
    """``trials(method, T)``: every step rule of the grid, by validation loss after the method's own adaptation."""

    @functools.cache
    def trials(method: meta.Method, T: int) -> list[training.Trial]:
        data, key = data_of(settings), seed_keys(1, training.ROLE_ADAPT)[0]
        loss = lambda xs: meta.losses(data.validate, xs, [key] * len(xs), method.adaptation)
        rules, times = training.grid(T, **settings["grid"]), training.checkpoints_of(T, settings["points"])
        seeds = settings.get("tuning_seeds", 1)
        return training.tune(data.fit, data.x1, method.estimator, rules, loss, checkpoints=times, seeds=seeds)

    return trials


def runs(
    data: meta.Data, method: meta.Method, trials: Trials, seeds: int, checkpoints: Times
) -> Iterator[tuple[Row, Key, training.Curve]]:
    """(columns, key of the adaptation, curve) of every seed, with the paper's rule and the best constant or Adam."""
    for seed, key in enumerate(seed_keys(seeds, training.ROLE_ADAPT)):
        for steps, rule in training.both_rules(trials).items():
            columns: Row = {**named(method), "steps": steps, "rule": str(rule), "seed": seed}
            curve = training.train(data.fit, data.x1, method.estimator, rule, seed=seed, checkpoints=checkpoints)
            yield columns, key, curve


def curve_rows(data: meta.Data, method: meta.Method, trials: Trials, seeds: int, checkpoints: Times) -> Iterator[Row]:
    """``own``: test loss after own adaptation at every checkpoint. Of the last x: ``tight`` until y*, ``whole`` after
    MAML's steps on all images, ``validation`` after own adaptation."""
    ways = {"tight": (data.test, meta.UNTIL_Y_STAR), "validation": (data.validate, method.adaptation)}
    ways |= {"whole": (data.test, method.whole)} if method.whole else {}
    for columns, key, curve in runs(data, method, trials, seeds, checkpoints):
        xs = training.unstack(curve.x)
        own = meta.losses(data.test, xs, [key] * len(xs), method.adaptation)
        for j, t in enumerate(checkpoints):
            calls = {name: int(a[j]) for name, a in curve.cost.asdict().items()}
            yield {"kind": "curve", **columns, "t": t, "own": finite(own[j]), **calls}
        last = {name: finite(meta.losses(on, xs[-1:], [key], how)[0]) for name, (on, how) in ways.items()}
        yield {"kind": "end", **columns, "t": checkpoints[-1], **last, "data": data.source}


def cells(
    settings: Chosen, seeds: int, methods: Methods, at: meta.Method, measured: Methods, tuned_as: Any, stops: Any
) -> Iterator[Cell]:
    """Tuning and curves of each method, ``tuned_as`` another, until it ``stops``; noise and bias at one's last x."""
    T, trials = settings["T"], tuner(settings)

    def work(method: meta.Method) -> list[Row]:
        model = tuned_as.get(method, method)
        stop = stops.get(method, T)
        times = tuple(t for t in training.checkpoints_of(T, settings["points"]) if t <= stop)
        rows = training.tuning_rows(trials(method, T), **named(method)) if model == method else []
        found = curve_rows(data_of(settings), method, trials(model, T), seeds, times)
        return rows + [{**row, "tuned_at": model.setting} for row in found]

    def one_gradient() -> list[Row]:
        data, rule = data_of(settings), training.both_rules(trials(at, T))["paper"]
        curve = training.train(data.fit, data.x1, at.estimator, rule, seed=0, checkpoints=(T,))
        return noise_rows(data, measured, training.unstack(curve.x)[-1], settings["calls"])

    for method in methods:
        yield Cell(f"{method.name}, {method.setting}", partial(work, method))
    if not settings["small"]:
        yield Cell("noise and bias of one gradient", one_gradient)


def noise_rows(data: meta.Data, methods: Sequence[meta.Method], x: X, calls: int) -> list[Row]:
    """``sd`` of one gradient v at x; ``bias``, |E v - grad F| / |grad F|, with its interval; ``norm``: |grad F|."""
    key = seed_keys(1, training.ROLE_RUN)[0]
    exact = reference(key, data.fit, x, data.fit.n_contexts or 0, 0).grad  # on all images of all tasks
    norm = float(np.linalg.norm(exact))
    rows: list[Row] = []
    for method in methods:
        found = flat_rows(batch_means(key, data.fit, x, estimator=method.estimator, batches=calls))
        bias = relative_bias(found - exact, norm, 0.0)
        sd = float(np.sqrt(found.var(0, ddof=1).sum()))
        columns = {"kind": "noise", **named(method), "calls": calls}
        values = {"sd": sd, "norm": norm, "bias": bias.estimate, "bias_low": bias.low, "bias_high": bias.high}
        rows.append({**columns, **{name: finite(value) for name, value in values.items()}})
    return rows


KINDS = {"paper": "the paper's steps", "other": "the best constant or Adam"}  # value of the column ``steps``: in words
Which = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]  # columns that pick runs, or a function of the steps
ADAPTED = {"own": "own adaptation", "tight": "until y*"}


def curve(records: Records, column: str = "own", **equal: Any) -> tuple[list[int], np.ndarray]:
    """(iterations, losses of shape (seeds, iterations)), by default after own adaptation."""
    rows = records.where(kind="curve", **equal)
    t, seeds = (sorted({row[name] for row in rows}) for name in ("t", "seed"))
    value = {(row["seed"], row["t"]): row[column] for row in rows}
    return t, np.array([[value[seed, time] for time in t] for seed in seeds])


def losses(records: Records, column: str, t: int | None = None, **equal: Any) -> np.ndarray:
    """``own``, ``tight``, ``whole`` or ``validation`` of the last iterate (own: or of iteration t), for each seed."""
    if column != "own":
        return np.asarray(records.values(column, kind="end", **equal))
    times, found = curve(records, **equal)
    return found[:, -1 if t is None else times.index(t)]


def settings_of(records: Records, method: str) -> list[str]:
    return records.distinct("setting", kind="curve", method=method)


def by_steps(of: Callable[[str], Any]) -> dict[str, Any]:
    """A value for each kind of steps, by its words."""
    return {words: of(steps) for steps, words in KINDS.items()}


def difference(
    records: Records, column: str, one: Which, other: Which, t: int | None = None, its: str | None = None
) -> dict[str, Interval]:
    """Loss of one minus loss of the other (in column ``its``), paired by seed, with both kinds of steps."""
    at = lambda which, steps: which(steps) if callable(which) else which
    of = lambda name, which, steps: losses(records, name, t, steps=steps, **at(which, steps))
    return by_steps(lambda steps: mean(of(column, one, steps) - of(its or column, other, steps)))


def best(records: Records, method: str, among: list[str]) -> Callable[[str], dict[str, Any]]:
    """For each kind of steps the setting of least validation loss: the test chooses nothing."""
    loss = lambda name, steps: losses(records, "validation", method=method, setting=name, steps=steps).mean()
    return lambda steps: {"method": method, "setting": min(among, key=lambda name: loss(name, steps))}


def draw(records: Records, methods: Mapping[str, str | None], panel: Any, steps: str) -> None:
    """Curves with their bands of these methods: of the one setting that is named, or of all, from light to full."""
    for method, only in methods.items():
        names = [only] if only else settings_of(records, method)
        for i, setting in enumerate(names):
            t, found = curve(records, method=method, setting=setting, steps=steps)
            label = setting if method == next(iter(methods)) else f"{method}, {setting}"
            figures.band(panel, t, found, method, label, color=figures.colour(method, i, len(names)))
    panel.set(xlabel="upper iterations")


def drawn(records: Records, columns: Mapping[str, Mapping[str, str | None]], where: str, **words: Any) -> Drawn:
    """What Figures 1 and 4 show: columns of methods (see `draw`), last losses, and one gradient at that place."""
    drawings = {title: partial(draw, records, methods) for title, methods in columns.items()}
    figure, tables = by_kinds(drawings, "test loss, own adaptation"), [ends_table(records)]
    return Drawn(figure, [*tables, *noise_tables(records, where)], caption_words(records) | words)


def caption_words(records: Records) -> dict[str, Any]:
    return {"data": records.values("data")[0], "norm": meta.NORM, "images": meta.IMAGES}


def by_kinds(columns: Mapping[str, Callable[[Any, str], None]], ylabel: str) -> Any:
    """A figure with a column for each of these drawings and a row for each kind of steps."""
    figure, axes = figures.panels(len(columns) * len(KINDS), rows=len(KINDS), sharey=True)
    parts = itertools.product(KINDS.items(), columns.items())
    for panel, ((steps, words), (title, drawn)) in zip(axes, parts, strict=True):
        drawn(panel, steps)
        panel.set(title=f"{title}, {words}", ylabel=ylabel)
    for panel, room in zip(axes, (0.8, *[0.0] * len(axes)), strict=False):  # they share one axis
        figures.legend(panel, room=room)
    return figure


def ends_table(records: Records) -> Table:
    rows = []
    for row in records.where(kind="end", seed=0):
        which = {name: row[name] for name in ("method", "setting", "steps")}
        calls = mean([r["grad_g"] / row["t"] for r in records.where(kind="curve", t=row["t"], **which)])
        own, tight = (str(mean(losses(records, column, **which))) for column in ADAPTED)
        whole = str(mean(losses(records, "whole", **which))) if "whole" in row else "-"
        rule = row["rule"] + ("" if row["tuned_at"] == row["setting"] else f" (tuned at {row['tuned_at']})")
        rows.append((row["method"], row["setting"], rule, str(row["t"]), own, tight, whole, f"{calls.value:.0f}"))
    adapted = ("test loss, own adaptation", "until y*", "own steps, all images")
    columns = ("method", "", "steps", "T", *adapted, "lower gradients / iteration")
    return Table("Test loss of the last iterate", columns, rows)


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
