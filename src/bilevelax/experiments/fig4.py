"""Figure 4: one-step MAML by the size of its inner step, and m-step MAML against RT-MLMC."""

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

PRINTED = [5e-3, 1e-2, 5e-2, 0.1, 0.2]
CONFIG = Config(
    title="One-step MAML by inner step size, m-step MAML against RT-MLMC",
    place="Figure 4 (appendix)",
    duration="about 5 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "dataset": "synthetic",
            "small": True,
            "gamma": [0.05, 0.2],
            "gamma_m": 0.1,
            "m": [2],
            "K": 2,
            "T": 6,
            "points": 2,
            "grid": {"paper": [0.3], "constant": [0.1], "adam": [0.01]},
        },
        "quick": {
            "seeds": 2,
            "dataset": "auto",
            "small": False,
            "gamma": [5e-3, 0.2, 1.0],
            "gamma_m": 0.1,
            "m": [4, 12],
            "K": 8,
            "T": 60,
            "points": 5,
            "grid": {"paper": [0.3, 1.0], "constant": [0.3], "adam": [0.003]},
        },
        "full": {
            "seeds": 4,
            "dataset": "auto",
            "small": False,
            "gamma": [*PRINTED, 0.5, 1.0],
            "gamma_m": 0.1,
            "m": [4, 8, 12],
            "K": 8,
            "T": 200,
            "points": 6,
            "grid": {"paper": [0.3, 1.0], "constant": [0.1, 0.3], "adam": [0.001, 0.003, 0.01]},
        },
    },
)


def methods(settings: dict[str, Any]) -> list[meta.Method]:
    one_step = [meta.steps(1, gamma) for gamma in settings["gamma"]]
    more = [meta.steps(m, settings["gamma_m"]) for m in settings["m"]]
    quiet = [] if settings["small"] else [meta.quiet(settings["K"])]  # nothing new to test at scale smoke
    return [*one_step, *more, meta.rt(settings["K"]), *quiet]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    data = partial(meta.load, settings["dataset"], settings["small"])
    points = training.checkpoints_of(settings["T"], settings["points"])

    @functools.cache
    def trials(method: meta.Method) -> list[training.Trial]:
        return meta.tuned(data(), method, settings["T"], settings["points"], settings["grid"])

    def work(method: meta.Method) -> list[Row]:
        rows = meta.tuning_rows(method, trials(method))
        for which, rule in meta.both_rules(trials(method)).items():
            if which == "paper" or method.name != "MAML":
                rows += meta.curve_rows(data(), method, rule, seeds=seeds, checkpoints=points, steps_of=which)
        return rows

    for method in methods(settings):
        yield Cell(f"{method.name}, {method.setting}", partial(work, method))


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(3)
    rt = settings_of(records, "RT-MLMC")[0]
    one_step, more = settings_of(records, "MAML"), settings_of(records, "m-step MAML")
    for i, setting in enumerate(one_step):
        t, losses = curve(records, method="MAML", setting=setting, steps="paper")
        label = setting.removeprefix("m = 1, ")
        figures.band(axes[0], t, losses, "MAML", label, color=figures.colour("MAML", i, len(one_step)))
    axes[0].set(title="one-step MAML")
    same = f"m = 1, gamma = {records.settings['gamma_m']:g}"
    if same in one_step:
        figures.band(axes[1], *curve(records, method="MAML", setting=same, steps="paper"), "MAML", "m = 1")
    for i, setting in enumerate(more):
        t, losses = curve(records, method="m-step MAML", setting=setting, steps="paper")
        shade = figures.colour("m-step MAML", i, len(more))
        figures.band(axes[1], t, losses, "m-step MAML", setting.split(",")[0], color=shade)
    figures.band(axes[1], *curve(records, method="RT-MLMC", setting=rt, steps="paper"), "RT-MLMC", f"RT-MLMC, {rt}")
    draw_other(records, axes[1], "RT-MLMC")
    draw_quiet(records, axes[1])
    axes[1].set(title=f"m-step MAML, gamma = {records.settings['gamma_m']:g}")
    for panel in axes[:2]:
        panel.set(xlabel="upper iterations", ylabel="test loss, own adaptation")
        figures.legend(panel, room=0.45, ncols=2)
    draw_ends(records, axes[2], one_step)
    caption = (
        f"MAML on {source(records)}, features of length {meta.NORM:g}, {meta.IMAGES} images in each gradient; 95 % "
        f"bands over {records.settings['seeds']} seeds. Right: the last iterates of one-step MAML against its step. "
        "The paper prints no numbers for this figure; its steps are 0.005 to 0.2."
    )
    return Rendered([(figures.save(figure, out, "fig4"), caption)], [ends_table(records), tuning(records)])


def draw_ends(records: Records, panel: Any, one_step: list[str]) -> None:
    """Last losses of one-step MAML against gamma, with RT-MLMC as a line."""
    gammas = [float(setting.rpartition("= ")[2]) for setting in one_step]
    ways = (
        ("own", "full", "solid", f"MAML, on {meta.IMAGES} images (own)"),
        ("whole", "full", "dotted", "MAML, on all images"),
        ("tight", "none", "dashed", "MAML, until y*"),
    )
    for column, fill, style, words in ways:
        found = [mean(ends(records, column, method="MAML", setting=s, steps="paper")) for s in one_step]
        figures.points(panel, gammas, found, "MAML", words, fillstyle=fill, linestyle=style)
    for column, style in (("own", "solid"), ("tight", "dashed")):
        level = mean(ends(records, column, method="RT-MLMC", steps="paper"))
        panel.axhline(level.value, color=figures.colour("RT-MLMC"), linestyle=style, linewidth=1.2)
    panel.axvspan(PRINTED[0], PRINTED[-1], color="0.85", linewidth=0, label="steps of the paper")
    panel.plot([], [], color=figures.colour("RT-MLMC"), label="RT-MLMC, own (dashed: until y*)")
    panel.set(xscale="log", xlabel="inner step gamma", ylabel="test loss of the last x", title="last iterates")
    figures.legend(panel, room=0.2, loc="upper left")


def inner_steps(records: Records) -> list[Claim]:
    names = settings_of(records, "MAML")
    gamma = {name: float(name.rpartition("= ")[2]) for name in names}
    printed = [name for name in names if gamma[name] <= PRINTED[-1]]
    own = {name: mean(ends(records, "own", method="MAML", setting=name, steps="paper")) for name in names}
    losses = ", ".join(f"{gamma[name]:g}: {own[name]}" for name in names)
    pair = lambda a, b: difference(records, "own", {"method": "MAML", "setting": a}, {"method": "MAML", "setting": b})
    worse = pair(printed[-1], printed[0])
    least = min(names, key=lambda name: own[name].value)
    beyond = pair(names[-1], least)
    flat = pair(printed[min(1, len(printed) - 1)], printed[0])
    whole = ", ".join(
        f"{gamma[name]:g}: {ends(records, 'whole', method='MAML', setting=name, steps='paper').mean():.3g}"
        for name in names
    )
    seeds = records.settings["seeds"]
    return [
        Claim(
            "One-step MAML degrades at large inner steps",
            "at 0.2 against 0.005",
            f"test loss by gamma: {losses}; {gamma[printed[-1]]:g} minus {gamma[printed[0]]:g}: {worse}",
            seeds,
            Claim.judge(worse.low > 0, beyond.low > 0),
            "The useful size of a step is set by the length of the features, which the paper does not give, and by the "
            f"images in it. Ours are of length {meta.NORM:g}, {meta.IMAGES} images: {gamma[names[-1]]:g} minus the "
            f"best, {gamma[least]:g}: {beyond}. On all images of a task the loss falls with gamma throughout: {whole}.",
        ),
        Claim(
            "One-step MAML is flat at small inner steps",
            "0.005 and 0.01 alike",
            f"{gamma[printed[min(1, len(printed) - 1)]]:g} minus {gamma[printed[0]]:g}: {flat}",
            seeds,
            Claim.judge(abs(flat.value) < 0.03, abs(flat.value) < 0.1),
            "So small a step hardly moves y away from x.",
        ),
    ]


def claims(records: Records) -> list[Claim]:
    seeds = records.settings["seeds"]
    rt = {"method": "RT-MLMC", "setting": settings_of(records, "RT-MLMC")[0]}
    more = [{"method": "m-step MAML", "setting": name} for name in settings_of(records, "m-step MAML")]
    same = f"m = 1, gamma = {records.settings['gamma_m']:g}"
    one = {
        "method": "MAML",
        "setting": same if same in settings_of(records, "MAML") else settings_of(records, "MAML")[0],
    }
    best = min(more, key=lambda which: ends(records, "own", steps="paper", **which).mean())
    more_steps = difference(records, "own", best, one)
    own, tight = (difference(records, column, rt, best) for column in ("own", "tight"))
    quiet = {"method": meta.QUIET, "setting": rt["setting"]}
    less = [difference(records, column, quiet, best) for column in ("own", "tight") if records.where(**quiet)]
    return [
        *inner_steps(records),
        Claim(
            "More inner steps improve MAML",
            "a figure without numbers",
            f"{best['setting']} minus {one['setting']}: {more_steps}",
            seeds,
            Claim.judge(more_steps.high < 0, more_steps.value < 0),
            "After the method's own adaptation.",
        ),
        Claim(
            "RT-MLMC beats m-step MAML",
            "a figure without numbers",
            f"RT-MLMC ({rt['setting']}) minus m-step MAML ({best['setting']}): own adaptation {own}, until y* {tight}"
            + (f"; with less noise: own adaptation {less[0]}, until y* {less[1]}" if less else ""),
            seeds,
            Claim.judge(own.high < 0 and tight.high < 0, any(gap.high < 0 for gap in (own, tight, *less))),
            "At equal iterations and tuning. MAML unrolls a few steps exactly; RT-MLMC pays for a gradient without "
            "that bias with the noise of the Neumann series and of the levels. Standard deviation of the last loss "
            f"over seeds, until y*: {spreads(records, [rt, best, *([quiet] if less else [])])}.",
        ),
    ]
