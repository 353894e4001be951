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
    ends,
    ends_table,
    settings_of,
    source,
    tuning_table,
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
    middle = 6 if 6 in Ks else Ks[0]  # where DL-SGD and RT-MLMC are tuned
    families = {"DL-SGD": meta.dl, "RT-MLMC": meta.rt}
    tuned_on = {"DL-SGD": meta.dl(middle), "RT-MLMC": meta.rt(middle), "MAML": meta.steps(1, GAMMA)}

    @functools.cache
    def trials(family: str) -> list[training.Trial]:
        return meta.tuned(data(), tuned_on[family], T, settings["points"], settings["grid"])

    def curves(method: meta.Method, which: str) -> list[Row]:
        stop = settings["T_of_K"].get(method.setting.removeprefix("K = "), T) if method.name == "DL-SGD" else T
        points = tuple(min(t, stop) for t in training.checkpoints_of(T, settings["points"]))
        rule = meta.both_rules(trials(method.name))[which]
        return meta.curve_rows(data(), method, rule, seeds=seeds, checkpoints=points, steps_of=which)

    def tuning(method: meta.Method) -> list[Row]:
        return meta.tuning_rows(method, trials(method.name))

    for family, method in tuned_on.items():
        yield Cell(f"tuning of {family}", partial(tuning, method))
        for member in [method] if family == "MAML" else [families[family](K) for K in Ks]:
            yield Cell(f"{family}, {member.setting}", partial(curves, member, "paper"))
        yield Cell(f"{family}, {method.setting}, other steps", partial(curves, method, "other"))


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(3)
    maml = settings_of(records, "MAML")[0]
    for panel, method in zip(axes, ("DL-SGD", "RT-MLMC"), strict=False):
        names = settings_of(records, method)
        for i, setting in enumerate(names):
            t, losses = curve(records, method=method, setting=setting, steps="paper")
            figures.band(panel, t, losses, method, setting, color=figures.colour(method, i, len(names)))
        draw_other(records, panel, method)
        t, losses = curve(records, method="MAML", setting=maml, steps="paper")
        figures.band(panel, t, losses, "MAML", "MAML")
        panel.set(xlabel="upper iterations", ylabel="test loss, own adaptation", title=method)
        panel.legend(frameon=False, ncols=2)
    limits = axes[0].get_ylim(), axes[1].get_ylim()
    axes[0].sharey(axes[1])
    axes[1].set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    draw_tight(records, axes[2], maml)
    path = figures.save(figure, out, "fig1")
    return Rendered([(path, caption(records))], [ends_table(records), tuning_table(records)])


def draw_tight(records: Records, panel: Any, maml: str) -> None:
    """Losses after adaptation until y*, against K."""
    for method in ("DL-SGD", "RT-MLMC"):
        names = settings_of(records, method)
        Ks = [int(name.removeprefix("K = ")) for name in names]
        found = [mean(ends(records, "tight", method=method, setting=name, steps="paper")) for name in names]
        figures.points(panel, Ks, found, method, linestyle="none")
    level = mean(ends(records, "tight", method="MAML", setting=maml, steps="paper"))
    panel.axhline(level.value, color=figures.colour("MAML"), label="MAML")
    panel.axhspan(level.low, level.high, color=figures.colour("MAML"), alpha=0.2, linewidth=0)
    panel.set(xlabel="K", ylabel="test loss of the last x, adapted until y*", title="the same adaptation for all")
    panel.legend(frameon=False)


def caption(records: Records) -> str:
    stops = records.settings["T_of_K"]
    short = "".join(f"; DL-SGD with K = {K} stops at {T}" for K, T in stops.items())
    return (
        f"Meta-learning on {source(records)}, features of length {meta.NORM:g}, 95 % bands over "
        f"{records.settings['seeds']} seeds{short}. Left, middle: test loss after each method's own adaptation. "
        "Right: the last iterates adapted until y*. The paper prints no numbers for this figure."
    )


def larger_K(records: Records, method: str) -> Claim:
    names = settings_of(records, method)
    printed = [name for name in names if int(name.removeprefix("K = ")) >= 6] or names
    ends_own = {name: mean(ends(records, "own", method=method, setting=name, steps="paper")) for name in names}
    full = [
        n for n in printed if curve(records, method=method, setting=n, steps="paper")[0][-1] == records.settings["T"]
    ]
    gain, all_K, same = (
        difference(records, column, {"method": method, "setting": a}, {"method": method, "setting": b})
        for column, a, b in (
            ("own", full[-1], full[0]),
            ("own", full[-1], names[0]),
            ("tight", full[-1], full[0]),
        )
    )
    losses = ", ".join(f"{name}: {ends_own[name]}" for name in names if name in full or name not in printed)
    return Claim(
        f"{method}: larger K generalises better",
        "a figure without numbers",
        f"own adaptation: {losses}; {full[-1]} minus {full[0]}: {gain}; until y*: {same}",
        records.settings["seeds"],
        Claim.judge(gain.high < 0 and same.high < 0, gain.high < 0 or all_K.high < 0),
        f"With its own adaptation a larger K means a better solved task; {full[-1]} minus {names[0]}: {all_K}. With the "
        "same exact adaptation for all, what is left is the gradient, whose bias in K is below its noise here.",
    )


def beats_maml(records: Records, method: str) -> Claim:
    names = settings_of(records, method)
    full = [n for n in names if curve(records, method=method, setting=n, steps="paper")[0][-1] == records.settings["T"]]
    maml = {"method": "MAML", "setting": settings_of(records, "MAML")[0]}
    chosen = min(full, key=lambda n: ends(records, "own", method=method, setting=n, steps="paper").mean())
    own, tight = (
        difference(records, column, {"method": method, "setting": chosen}, maml) for column in ("own", "tight")
    )
    return Claim(
        f"{method} beats MAML",
        "a figure without numbers",
        f"{chosen} minus MAML ({maml['setting']}): own adaptation {own}, until y* {tight}",
        records.settings["seeds"],
        Claim.judge(own.high < 0 and tight.high < 0, own.high < 0 or tight.high < 0),
        "At equal iterations and tuning. MAML's gradient is biased but has no Neumann product in it, and so a fraction of "
        "the noise.",
    )


def rt_matches_dl(records: Records) -> Claim:
    shared = [n for n in settings_of(records, "RT-MLMC") if n in settings_of(records, "DL-SGD")]
    full = [
        n for n in shared if curve(records, method="DL-SGD", setting=n, steps="paper")[0][-1] == records.settings["T"]
    ]
    gaps = {
        n: difference(records, "own", {"method": "RT-MLMC", "setting": n}, {"method": "DL-SGD", "setting": n})
        for n in full
    }
    last = gaps[full[-1]]
    return Claim(
        "RT-MLMC matches DL-SGD at equal iterations",
        "two figures alike",
        "RT-MLMC minus DL-SGD, own adaptation: " + ", ".join(f"{n}: {gap}" for n, gap in gaps.items()),
        records.settings["seeds"],
        Claim.judge(last.low <= 0 or last.value < 0.02, last.value < 0.1),
        "Their gradients have the same mean; the multilevel one has more variance. Its time is in table2.",
    )


def claims(records: Records) -> list[Claim]:
    return [
        larger_K(records, "DL-SGD"),
        larger_K(records, "RT-MLMC"),
        beats_maml(records, "DL-SGD"),
        beats_maml(records, "RT-MLMC"),
        rt_matches_dl(records),
    ]
