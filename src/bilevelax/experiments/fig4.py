"""Figure 4: one-step MAML by the size of its inner step, and m-step MAML against RT-MLMC.

All methods run with the paper's steps and with the best constant or Adam; claims are judged on both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _meta as meta
from bilevelax.experiments import _meta_noise as noise
from bilevelax.experiments import _training as training
from bilevelax.experiments._fig4_claims import PRINTED, claims, gamma_of, same_step
from bilevelax.experiments._items import Cell, Config, Records, Rendered, Row
from bilevelax.experiments._meta_views import KINDS, draw, ends_table, losses, same_height, settings_of, source, tuning
from bilevelax.experiments._statistics import mean

__all__ = ["CONFIG", "claims", "render", "run"]

CONFIG = Config(
    title="One-step MAML by inner step size, m-step MAML against RT-MLMC",
    place="Figure 4 (appendix)",
    duration="about 10 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "tuning_seeds": 1,
            "dataset": "synthetic",
            "small": True,
            "gamma": [0.05, 0.2],
            "gamma_m": 0.1,
            "m": [2],
            "K": 2,
            "T": 6,
            "points": 2,
            "grid": meta.GRIDS["smoke"],
        },
        "quick": {
            "seeds": 2,
            "tuning_seeds": 1,
            "dataset": "auto",
            "small": False,
            "gamma": [5e-3, 0.2, 1.0],
            "gamma_m": 0.1,
            "m": [4, 12],
            "K": 8,
            "T": 60,
            "points": 5,
            "calls": 16,
            "grid": meta.GRIDS["quick"],
        },
        "full": {
            "seeds": 4,
            "tuning_seeds": 3,
            "dataset": "auto",
            "small": False,
            "gamma": [*PRINTED, 0.5, 1.0],
            "gamma_m": 0.1,
            "m": [4, 8, 12],
            "K": 8,
            "T": 200,
            "points": 6,
            "calls": 64,  # of each estimator, for its noise and bias
            "grid": meta.GRIDS["full"],
        },
    },
)


def methods(settings: dict[str, Any]) -> list[meta.Method]:
    one_step = [meta.steps(1, gamma) for gamma in settings["gamma"]]
    more = [meta.steps(m, settings["gamma_m"]) for m in settings["m"]]
    quiet = [] if settings["small"] else [meta.quiet(settings["K"])]  # nothing new to test at scale smoke
    return [*one_step, *more, meta.rt(settings["K"]), *quiet]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    T, all_methods = settings["T"], methods(settings)
    data, trials = partial(meta.load, settings["dataset"], settings["small"]), meta.tuner(settings)
    points = training.checkpoints_of(T, settings["points"])

    def work(method: meta.Method) -> list[Row]:
        found = trials(method, T)
        return meta.tuning_rows(method, found) + meta.curve_rows(data(), method, found, seeds=seeds, checkpoints=points)

    def one_gradient() -> list[Row]:
        most = meta.steps(max(settings["m"]), settings["gamma_m"])
        return noise.rows_at(data(), all_methods, noise.last_x(data(), most, trials(most, T), T), settings["calls"])

    for method in all_methods:
        yield Cell(f"{method.name}, {method.setting}", partial(work, method))
    if not settings["small"]:
        yield Cell("noise and bias of one gradient", one_gradient)


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(3 * len(KINDS), rows=len(KINDS))
    rows = axes.reshape(len(KINDS), 3)
    for (steps, words), panels in zip(KINDS.items(), rows, strict=True):
        draw(records, panels[0], "MAML", steps, lambda name: name.removeprefix("m = 1, "))
        panels[0].set(title=f"one-step MAML, {words}")
        draw(records, panels[1], "MAML", steps, lambda name: "m = 1", only=same_step(records))
        draw(records, panels[1], "m-step MAML", steps, lambda name: name.split(",")[0])
        draw(records, panels[1], "RT-MLMC", steps, lambda name: f"RT-MLMC, {name}")
        draw(records, panels[1], meta.QUIET, steps, lambda name: "with less noise", linestyle="dashdot")
        panels[1].set(title=f"gamma = {records.settings['gamma_m']:g}, {words}")
        for panel in panels[:2]:
            panel.set(xlabel="upper iterations", ylabel="test loss, own adaptation")
        draw_ends(records, panels[2], steps)
        panels[2].set(title=f"last iterates, {words}")
    for column, room in enumerate((0.45, 0.45, 0.2)):
        same_height(rows[:, column])
        for panel in rows[:, column]:
            figures.legend(panel, room=room, **({"ncols": 2} if column < 2 else {"loc": "upper left"}))
    caption = (
        f"MAML on {source(records)}, features of length {meta.NORM:g}, {meta.IMAGES} images in each gradient; 95 % "
        f"bands over {records.settings['seeds']} seeds. Above: the paper's steps, below: the best constant or Adam. "
        "Right: the last iterates of one-step MAML against its step. The paper prints no numbers for this figure; its "
        "steps are 0.005 to 0.2."
    )
    noises = noise.tables(records, f"the last x of {max(records.settings['m'])}-step MAML (first seed)")
    tables = [ends_table(records), *noises, tuning(records)]
    return Rendered([(figures.save(figure, out, "fig4"), caption)], tables)


def draw_ends(records: Records, panel: Any, steps: str) -> None:
    """Last losses of one-step MAML against gamma, with RT-MLMC as a band."""
    one_step = settings_of(records, "MAML")
    ways = (
        ("own", "full", "solid", f"MAML, on {meta.IMAGES} images (own)"),
        ("whole", "full", "dotted", "MAML, on all images"),
        ("tight", "none", "dashed", "MAML, until y*"),
    )
    for column, fill, style, words in ways:
        found = [mean(losses(records, column, method="MAML", setting=s, steps=steps)) for s in one_step]
        figures.points(panel, [gamma_of(s) for s in one_step], found, "MAML", words, fillstyle=fill, linestyle=style)
    shade = figures.colour("RT-MLMC")
    for column, style in (("own", "solid"), ("tight", "dashed")):
        level = mean(losses(records, column, method="RT-MLMC", steps=steps))
        panel.axhline(level.value, color=shade, linestyle=style, linewidth=1.2)
        panel.axhspan(level.low, level.high, color=shade, alpha=0.2, linewidth=0)
    panel.axvspan(PRINTED[0], PRINTED[-1], color="0.9", linewidth=0, zorder=0, label="steps of the paper")
    panel.plot([], [], color=shade, label="RT-MLMC, own (dashed: until y*)")
    panel.set(xscale="log", xlabel="inner step gamma", ylabel="test loss of the last x")
