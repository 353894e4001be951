"""Figure 3: WDRO with side information, by K, and against ERM and WDRO by demands per context.

All formulations take one step rule and as many runs from which one is chosen on validation: of ERM, which has no
lambda, runs from as many starts. So runs of equal number of ERM and WDRO-SI differ in the formulation only.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bilevelax.applications.newsvendor.loss import oracle_cost
from bilevelax.base.statistics import within_seeds
from bilevelax_paper import _newsvendors, figures
from bilevelax_paper import formulations as views
from bilevelax_paper._formulation_runs import CHECKPOINTS, Study
from bilevelax_paper.claims import claims_of
from bilevelax_paper.formulations import COMPARED, PAPER, Group, both_dimensions
from bilevelax_paper.item import Cell, Config, Drawn, Records
from bilevelax_paper.training import SOLVED

CONFIG = Config.read(__file__)
CLAIMS = claims_of(CONFIG, views.RULES)
DATA = ("M", "m", "widths", "test_points", "T", "grid", "tuning_seeds", "lam", "wide")  # settings of every cell
COMPARISON, LEVELS = ("T_in", "K_compare"), ("K_tune", "lam_small", "points")  # of one half of them


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    study = Study(settings, settings["d"])
    uses = lambda part, *names: {"d": part.d, **{n: settings[n] for n in (*DATA, *names)}, **constants()}
    for part in (study, *(Study(settings, d) for d in settings["easy"])):
        compared = uses(part, *COMPARISON)
        yield Cell(f"bounds in R^{part.d}", partial(part.bounds, range(seeds)), compared)
        for name, decision in COMPARED:
            work = partial(part.compare, name, decision, range(seeds))
            yield Cell(f"{name}, {decision} rule in R^{part.d}", work, compared)
    few = min(seeds, settings["curve_seeds"])
    by_K = uses(study, *LEVELS) | {"seeds": few}
    for name in ("DL-SGD", "RT-MLMC"):
        for K in settings["K"]:
            yield Cell(f"{name}, K = {K}", partial(study.by_K, name, K, range(few)), by_K)


def constants() -> dict[str, Any]:
    """Of the code, on which the records depend."""
    names = ("H", "B", "SCALE", "MU", "L", "CONTEXTS", "DEMANDS")
    return {name: getattr(_newsvendors, name) for name in names} | {"checkpoints": CHECKPOINTS, "solved": SOLVED}


def render(records: Records) -> Drawn:
    figure, axes = figures.panels(6, rows=2)
    for row, lam in ((axes[:2], 1.0), (axes[3:5], records.settings["lam_small"])):
        for panel, method in zip(row, ("DL-SGD", "RT-MLMC"), strict=True):
            draw_by_K(records, panel, method, lam)
        row[0].sharey(row[1])
        for panel, room in zip(row, (0.35, 0.0), strict=True):  # they share one axis
            figures.legend(panel, room=room, ncols=2)
    s, dims = records.settings, both_dimensions(records)
    for panel, d in zip((axes[2], axes[5]), dims, strict=True):
        draw_by_m(records, panel, d)
    tables = [views.by_m_table(records, d) for d in dict.fromkeys(dims)]
    words = {"d": dims[0], "small": dims[1], "most": max(s["m"]), "few": min(s["seeds"], s["curve_seeds"])}
    return Drawn(figure, tables, {**words, "h": _newsvendors.H, "b": _newsvendors.B})


def draw_by_K(records: Records, panel: Any, method: str, lam: float) -> None:
    """Curves of all K, each seed's own first cost replaced by the mean of all."""
    Ks = records.settings["K"]
    for i, K in enumerate(Ks):
        for steps, style in (("paper", "solid"), ("other", "dashed")):
            rows = records.where(kind="curve", method=method, K=K, steps=steps, lam=lam)
            costs = np.array([row["test"] for row in rows])
            levelled = costs - costs[:, :1] + costs[:, 0].mean()
            label = f"K = {K}" if steps == "paper" else "_"  # no entry in the legend
            shade = figures.colour(method, i, len(Ks))
            figures.band(panel, rows[0]["t"], levelled, method, label, color=shade, linestyle=style)
    rule = records.values("rule", kind="curve", method=method, steps="other")[0]
    panel.plot([], [], color=figures.colour(method), linestyle="dashed", label=f"the same, {rule}")
    panel.set(xlabel="upper iterations", ylabel="test cost", title=f"{method}, lambda = {lam:g}")


def draw_by_m(records: Records, panel: Any, d: int) -> None:
    ms = records.settings["m"]
    lines = [(method, label, grid) for label, grid in views.grids(records).items() for method in views.FORMULATIONS]
    costs = np.stack([[Group(records, d, method, m=m).chosen(grid) for m in ms] for method, _, grid in lines])
    found = within_seeds(costs.reshape(-1, costs.shape[-1]).T)
    for i, (method, label, _) in enumerate(lines):
        style, words = ("solid", method) if label == PAPER else ("dotted", "_")
        shift = 0.9 * (i - (len(lines) - 1) / 2)  # bars side by side
        part = found[i * len(ms) : (i + 1) * len(ms)]
        figures.points(panel, [m + shift for m in ms], part, method, words, linestyle=style)
    panel.plot([], [], color="0.3", linestyle="dotted", label="wider grid")
    constant = np.mean([Group(records, d, "ERM", m=m).bound("constant") for m in ms])
    for words, cost in (("best constant", constant), ("oracle", oracle_cost(_newsvendors.H, _newsvendors.B))):
        panel.plot([], [], linestyle="none", label=f"{words}: {cost:.2f}")
    panel.set(xlabel="demands per context, m", ylabel="test cost", title=f"formulations, R^{d}", xticks=ms)
    figures.legend(panel, room=0.45, ncols=2)
