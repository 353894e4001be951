"""Figure 1: meta-learning, test loss of DL-SGD, RT-MLMC and MAML against upper iterations.

"Test loss" has two readings, and they decide the claims: a method's x may be adapted to a task as
the method itself does (K epochs of EpochSGD, MAML's gradient step), or until y*, the same for all.
Both are recorded; curves show the first, the right panel the second.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _training as training
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row
from bilevelax.experiments._meta_views import (
    curve,
    difference,
    draw_other,
    draw_quiet,
    ends,
    ends_table,
    settings_of,
    source,
    spreads,
    tuning,
)
from bilevelax.experiments._statistics import mean

GRID = {"paper": [0.3, 1.0], "constant": [0.1, 0.3], "adam": [0.001, 0.003, 0.01]}
CONFIG = Config(
    title="Test loss against upper iterations, meta-learning",
    place="Figure 1",
    duration="about 8 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "dataset": "synthetic",
            "small": True,
            "K": [2],
            "K_tuned": 2,
            "T": 8,
            "T_of_K": {},
            "points": 2,
            "grid": {"paper": [1.0], "constant": [0.1], "adam": [0.01]},
        },
        "quick": {
            "seeds": 2,
            "dataset": "auto",
            "small": False,
            "K": [2, 6, 8],
            "K_tuned": 6,
            "T": 60,
            "T_of_K": {},
            "points": 5,
            "grid": {"paper": [0.3, 1.0], "constant": [0.3], "adam": [0.003]},
        },
        "full": {
            "seeds": 4,
            "dataset": "auto",
            "small": False,
            "K": [2, 6, 8, 10, 12],
            "K_tuned": 8,  # DL-SGD with larger K takes the steps of this one
            "T": 200,
            "T_of_K": {"12": 50},  # DL-SGD only: 8190 lower steps for each of 4 tasks
            "points": 6,
            "grid": GRID,
        },
    },
)
GAMMA = 1 / meta.LAM  # the paper defines MAML's step as 1/lambda


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    T, Ks = settings["T"], settings["K"]
    data = partial(meta.load, settings["dataset"], settings["small"])
    tuned_at = {meta.dl(K): meta.dl(min(K, settings["K_tuned"])) for K in Ks}  # others are tuned as they are

    @functools.cache
    def trials(method: meta.Method) -> list[training.Trial]:
        return meta.tuned(data(), method, T, settings["points"], settings["grid"])

    def work(method: meta.Method, which: str) -> list[Row]:
        model = tuned_at.get(method, method)
        stop = settings["T_of_K"].get(method.setting.removeprefix("K = "), T) if method.name == "DL-SGD" else T
        times = tuple(min(t, stop) for t in training.checkpoints_of(T, settings["points"]))
        rows = meta.tuning_rows(method, trials(method)) if (model, which) == (method, "paper") else []
        rule = meta.both_rules(trials(model))[which]
        return rows + meta.curve_rows(data(), method, rule, seeds=seeds, checkpoints=times, steps_of=which)

    maml = meta.steps(1, GAMMA)
    for method in (*map(meta.dl, Ks), *map(meta.rt, Ks), maml):
        yield Cell(f"{method.name}, {method.setting}", partial(work, method, "paper"))
    for method in (meta.dl(settings["K_tuned"]), meta.rt(settings["K_tuned"]), maml):
        yield Cell(f"{method.name}, {method.setting}, other steps", partial(work, method, "other"))
    if not settings["small"]:  # nothing new to test at scale smoke
        quiet = meta.quiet(settings["K_tuned"])
        for which in ("paper", "other"):
            yield Cell(f"{quiet.name}, {quiet.setting}, {which} steps", partial(work, quiet, which))


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(3)
    maml = settings_of(records, "MAML")[0]
    for panel, method in zip(axes, ("DL-SGD", "RT-MLMC"), strict=False):
        names = settings_of(records, method)
        for i, setting in enumerate(names):
            t, losses = curve(records, method=method, setting=setting, steps="paper")
            figures.band(panel, t, losses, method, setting, color=figures.colour(method, i, len(names)))
        draw_other(records, panel, method)
        if method == "RT-MLMC":
            draw_quiet(records, panel)
        t, losses = curve(records, method="MAML", setting=maml, steps="paper")
        figures.band(panel, t, losses, "MAML", "MAML")
        panel.set(xlabel="upper iterations", ylabel="test loss, own adaptation", title=method)
    low, high = (pick(panel.get_ylim()[i] for panel in axes[:2]) for i, pick in enumerate((min, max)))
    for panel in axes[:2]:
        panel.set_ylim(low, high)
        figures.legend(panel, room=0.45, ncols=2)
    draw_tight(records, axes[2], maml)
    path = figures.save(figure, out, "fig1")
    return Rendered([(path, caption(records))], [ends_table(records), tuning(records)])


def draw_tight(records: Records, panel: Any, maml: str) -> None:
    """Losses after adaptation until y*, against K; curves that stopped early are left out."""
    for method in ("DL-SGD", "RT-MLMC"):
        names = whole_runs(records, method)
        Ks = [int(name.removeprefix("K = ")) for name in names]
        found = [mean(ends(records, "tight", method=method, setting=name, steps="paper")) for name in names]
        shift = 0.12 if method == "RT-MLMC" else -0.12
        figures.points(panel, [K + shift for K in Ks], found, method, linestyle="none")
    for column, style, words in (
        ("tight", "solid", "MAML, until y*"),
        ("whole", "dashed", "MAML, one step on all images"),
    ):
        level = mean(ends(records, column, method="MAML", setting=maml, steps="paper"))
        panel.axhline(level.value, color=figures.colour("MAML"), linestyle=style, linewidth=1.2, label=words)
        panel.axhspan(level.low, level.high, color=figures.colour("MAML"), alpha=0.2, linewidth=0)
    panel.set(xlabel="K", ylabel="test loss of the last x", title="adapted until y*", xticks=records.settings["K"])
    figures.legend(panel, loc="upper left")


def caption(records: Records) -> str:
    stops = records.settings["T_of_K"]
    short = "".join(f"; DL-SGD with K = {K} stops at {T}" for K, T in stops.items())
    return (
        f"Meta-learning on {source(records)}, features of length {meta.NORM:g}, 95 % bands over "
        f"{records.settings['seeds']} seeds{short}. Left, middle: test loss after each method's own adaptation. "
        "Right: the last iterates adapted until y*. The paper prints no numbers for this figure."
    )


def whole_runs(records: Records, method: str) -> list[str]:
    """The settings whose curves go to T."""
    ends_at = {row["setting"]: row["t"] for row in records.where(kind="curve", method=method, steps="paper", seed=0)}
    return [name for name in settings_of(records, method) if ends_at[name] == records.settings["T"]]


def larger_K(records: Records, method: str) -> Claim:
    names = whole_runs(records, method)
    printed = [name for name in names if int(name.removeprefix("K = ")) >= 6] or names
    own = {name: mean(ends(records, "own", method=method, setting=name, steps="paper")) for name in names}
    pair = lambda column, a, b: difference(
        records, column, {"method": method, "setting": a}, {"method": method, "setting": b}
    )
    gain, same = (pair(column, printed[-1], printed[0]) for column in ("own", "tight"))
    which = lambda name: {"method": method, "setting": name, "steps": "paper"}
    far = {name: pair("own", name, names[0]) for name in printed}
    tuned = {
        name: min(row["loss"] for row in records.where(kind="tuning", method=method, setting=name))
        for name in records.distinct("setting", kind="tuning", method=method)
    }
    return Claim(
        f"{method}: larger K generalises better",
        "a figure without numbers",
        "own adaptation: "
        + ", ".join(f"{name}: {value}" for name, value in own.items())
        + f"; {printed[-1]} minus {printed[0]}: {gain}; the same until y*: {same}",
        records.settings["seeds"],
        Claim.judge(gain.high < 0 and same.high < 0, any(gap.high < 0 for gap in far.values())),
        f"After the method's own K epochs, where K decides how well a task is solved, K against {names[0]}: "
        + ", ".join(f"{name}: {gap}" for name, gap in far.items())
        + "; validation loss of the best step rule of any kind, one seed: "
        + ", ".join(f"{name}: {loss:.3f}" for name, loss in tuned.items())
        + f". With the same exact adaptation for all there is no gain from K after {records.settings['T']} iterations: "
        + ", ".join(f"{name}: {ends(records, 'tight', **which(name)).mean():.3f}" for name in names)
        + f". Standard deviation of that loss over seeds: {spreads(records, map(which, names))}.",
    )


def beats_maml(records: Records, method: str) -> Claim:
    maml = {"method": "MAML", "setting": settings_of(records, "MAML")[0]}
    loss = lambda name: ends(records, "own", method=method, setting=name, steps="paper").mean()
    chosen = {"method": method, "setting": min(whole_runs(records, method), key=loss)}
    own, tight = (difference(records, column, chosen, maml) for column in ("own", "tight"))
    whole = mean(ends(records, "tight", steps="paper", **chosen) - ends(records, "whole", steps="paper", **maml))
    return Claim(
        f"{method} beats MAML",
        "a figure without numbers",
        f"{chosen['setting']} minus MAML ({maml['setting']}): own adaptation {own}; both until y* {tight}; until y* "
        f"against MAML's step on all images {whole}",
        records.settings["seeds"],
        Claim.judge(all(gap.high < 0 for gap in (own, tight, whole)), own.high < 0 or tight.high < 0),
        (less_noise(records, maml) if method == "RT-MLMC" else "")
        + f"Holds when MAML adapts as in training, by one step on {meta.IMAGES} images. Its x is no worse when adapted "
        "better: MAML's gradient is biased, but has no Neumann product and no levels in it, and so less noise. "
        f"Standard deviation of the last loss over seeds, until y*: {spreads(records, [chosen, maml])}.",
    )


def less_noise(records: Records, other: dict[str, str], words: str = "MAML") -> str:
    """The same comparison for RT-MLMC with less noise, where it was run."""
    quiet = {"method": meta.QUIET, "setting": f"K = {records.settings['K_tuned']}"}
    if not records.where(kind="end", **quiet):
        return ""
    own, tight = (difference(records, column, quiet, other) for column in ("own", "tight"))
    return (
        f"With less noise (the whole Neumann series, levels spread evenly over tasks), {quiet['setting']} minus "
        f"{words}: own adaptation {own}, until y* {tight}. "
    )


def rt_matches_dl(records: Records) -> Claim:
    names = [name for name in whole_runs(records, "DL-SGD") if name in whole_runs(records, "RT-MLMC")]
    gaps = {
        name: difference(records, "own", {"method": "RT-MLMC", "setting": name}, {"method": "DL-SGD", "setting": name})
        for name in names
    }
    tuned = records.settings["K_tuned"]
    close = [gap.value < 0.05 for gap in gaps.values()]
    return Claim(
        "RT-MLMC matches DL-SGD at equal iterations",
        "two figures alike",
        "RT-MLMC minus DL-SGD, own adaptation: " + ", ".join(f"{name}: {gap}" for name, gap in gaps.items()),
        records.settings["seeds"],
        Claim.judge(all(close), any(close)),
        f"{less_noise(records, {'method': 'DL-SGD', 'setting': f'K = {tuned}'}, f'DL-SGD, K = {tuned}')}"
        "Reproduced means: less than 0.05 behind at every K. The gradients have the same mean; the multilevel one has "
        "more variance, the more the larger K. Lower gradients per iteration are in the table below, times in table2.",
    )


def claims(records: Records) -> list[Claim]:
    return [
        larger_K(records, "DL-SGD"),
        larger_K(records, "RT-MLMC"),
        beats_maml(records, "DL-SGD"),
        beats_maml(records, "RT-MLMC"),
        rt_matches_dl(records),
    ]
