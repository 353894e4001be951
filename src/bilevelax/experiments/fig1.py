"""Figure 1: meta-learning, test loss of DL-SGD, RT-MLMC and MAML against upper iterations.

"Test loss" has two readings, and they decide the claims: a method's x may be adapted to a task as
the method itself does (K epochs of EpochSGD, MAML's gradient step), or until y*, the same for all.
Both are recorded; curves show the first, the right panels the second. All methods run with the paper's
steps and with the best constant or Adam; claims are judged on both, at the K of the paper.
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
from bilevelax.experiments._fig1_claims import claims, whole_runs
from bilevelax.experiments._items import Cell, Config, Records, Rendered, Row
from bilevelax.experiments._meta_views import KINDS, draw, ends_table, losses, same_height, settings_of, source, tuning
from bilevelax.experiments._statistics import mean

__all__ = ["CONFIG", "claims", "render", "run"]

CONFIG = Config(
    title="Test loss against upper iterations, meta-learning",
    place="Figure 1",
    duration="about 15 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "tuning_seeds": 1,
            "dataset": "synthetic",
            "small": True,
            "K": [2],
            "K_tuned": 2,
            "T": 8,
            "T_of_K": {},
            "points": 2,
            "grid": meta.GRIDS["smoke"],
        },
        "quick": {
            "seeds": 2,
            "tuning_seeds": 1,
            "dataset": "auto",
            "small": False,
            "K": [6, 8],
            "K_tuned": 6,
            "T": 60,
            "T_of_K": {},
            "points": 5,
            "calls": 16,
            "grid": meta.GRIDS["quick"],
        },
        "full": {
            "seeds": 4,
            "tuning_seeds": 3,
            "dataset": "auto",
            "small": False,
            "K": [6, 8, 10, 12],
            "K_tuned": 8,  # DL-SGD with larger K takes the steps of this one
            "T": 200,
            "T_of_K": {"12": 50},  # DL-SGD only: 8190 lower steps for each of 4 tasks
            "points": 6,
            "calls": 64,  # of each estimator, for its noise and bias
            "grid": meta.GRIDS["full"],
        },
    },
)
GAMMA = 1 / meta.LAM  # the paper defines MAML's step as 1/lambda


def methods(settings: dict[str, Any]) -> list[meta.Method]:
    quiet = [] if settings["small"] else [meta.quiet(settings["K_tuned"])]  # nothing new to test at scale smoke
    return [*map(meta.dl, settings["K"]), *map(meta.rt, settings["K"]), *quiet, meta.steps(1, GAMMA)]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    T, all_methods = settings["T"], methods(settings)
    data, trials = partial(meta.load, settings["dataset"], settings["small"]), meta.tuner(settings)
    tuned_at = {meta.dl(K): meta.dl(min(K, settings["K_tuned"])) for K in settings["K"]}  # others as they are

    def work(method: meta.Method) -> list[Row]:
        model = tuned_at.get(method, method)
        stop = settings["T_of_K"].get(method.setting.removeprefix("K = "), T) if method.name == "DL-SGD" else T
        times = tuple(t for t in training.checkpoints_of(T, settings["points"]) if t <= stop)
        rows = meta.tuning_rows(method, trials(method, T)) if model == method else []
        return rows + meta.curve_rows(
            data(), method, trials(model, T), seeds=seeds, checkpoints=times, tuned_at=model.setting
        )

    def one_gradient() -> list[Row]:
        maml = all_methods[-1]
        measured = [m for m in all_methods if m.name != "DL-SGD"] + [meta.dl(settings["K_tuned"])]
        return noise.rows_at(data(), measured, noise.last_x(data(), maml, trials(maml, T), T), settings["calls"])

    for method in all_methods:
        yield Cell(f"{method.name}, {method.setting}", partial(work, method))
    if not settings["small"]:
        yield Cell("noise and bias of one gradient", one_gradient)


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(3 * len(KINDS), rows=len(KINDS))
    rows = axes.reshape(len(KINDS), 3)
    for (steps, words), panels in zip(KINDS.items(), rows, strict=True):
        for panel, method in zip(panels, ("DL-SGD", "RT-MLMC"), strict=False):
            draw(records, panel, method, steps)
            if method == "RT-MLMC":
                draw(records, panel, meta.QUIET, steps, lambda name: f"{name}, less noise", linestyle="dashdot")
            draw(records, panel, "MAML", steps, lambda name: "MAML")
            panel.set(xlabel="upper iterations", ylabel="test loss, own adaptation", title=f"{method}, {words}")
        draw_tight(records, panels[2], steps)
        panels[2].set(title=f"adapted until y*, {words}")
    same_height(rows[:, :2].ravel())
    for panel in rows[:, :2].ravel():
        figures.legend(panel, room=0.4, ncols=2)
    same_height(rows[:, 2])
    for panel in rows[:, 2]:
        figures.legend(panel, room=0.4, loc="upper left")
    path = figures.save(figure, out, "fig1")
    noises = noise.tables(records, "the last x of MAML (first seed, the paper's steps)")
    return Rendered([(path, caption(records))], [ends_table(records), *noises, tuning(records)])


def draw_tight(records: Records, panel: Any, steps: str) -> None:
    """Losses after adaptation until y*, against K; curves that stopped early are left out."""
    for method, shift in (("DL-SGD", -0.12), ("RT-MLMC", 0.12), (meta.QUIET, 0.36)):
        names = whole_runs(records, method)
        Ks = [int(name.removeprefix("K = ")) + shift for name in names]
        found = [mean(losses(records, "tight", method=method, setting=name, steps=steps)) for name in names]
        if found:
            figures.points(panel, Ks, found, method, linestyle="none")
    maml = settings_of(records, "MAML")[0]
    for column, style, words in (
        ("tight", "solid", "MAML, until y*"),
        ("whole", "dashed", "MAML, one step on all images"),
    ):
        level = mean(losses(records, column, method="MAML", setting=maml, steps=steps))
        panel.axhline(level.value, color=figures.colour("MAML"), linestyle=style, linewidth=1.2, label=words)
        panel.axhspan(level.low, level.high, color=figures.colour("MAML"), alpha=0.2, linewidth=0)
    panel.set(xlabel="K", ylabel="test loss of the last x", xticks=records.settings["K"])


def caption(records: Records) -> str:
    stops = records.settings["T_of_K"]
    short = "".join(f"; DL-SGD with K = {K} stops at {T}" for K, T in stops.items())
    tuned = records.settings["K_tuned"]
    borrowed = max(records.settings["K"]) > tuned
    models = f"; DL-SGD with K > {tuned} takes the steps of K = {tuned}" if borrowed else ""
    return (
        f"Meta-learning on {source(records)}, features of length {meta.NORM:g}, 95 % bands over "
        f"{records.settings['seeds']} seeds{short}{models}. Above: the paper's steps, below: the best constant or "
        "Adam. Left, middle: test loss after each method's own adaptation. Right: the last iterates adapted until y*. "
        "The paper prints no numbers for this figure."
    )
