"""Figure 3: WDRO with side information, by K, and against ERM and WDRO by demands per context.

All formulations take one step rule, tuned on all of them alike, as many pairs of a context and a demand in an
iteration, and as many runs from which one is chosen on validation: of ERM, which has no lambda, runs from as many
starts. So runs of equal number of ERM and WDRO-SI differ in the formulation only; WDRO draws its own demands.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.applications._newsvendor import oracle_cost
from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _formulation_claims, _newsvendors
from bilevelax.experiments._formulation_runs import CHECKPOINTS, Study
from bilevelax.experiments._formulation_views import (
    COMPARED,
    FORMULATIONS,
    PAPER,
    SOLVED,
    Group,
    both_dimensions,
    by_m_table,
    curves,
    end_table,
    grids,
    tuning,
    within_seeds,
)
from bilevelax.experiments._items import Cell, Config, Records, Rendered

PRINTED = [1.0, 10.0, 50.0, 100.0, 150.0]  # the paper's lambdas
WIDE = [0.003, 0.01, 0.03, 0.1, 0.3]
REAL: dict[str, Any] = {
    "d": 100,
    "easy": [5],  # dimensions in which 50 contexts are enough to learn from
    "M": 50,
    "m": [10, 30, 50, 100],
    "widths": [32, 16],
    "T_in": 15,
    "K_compare": 6,
    "K_tune": 4,
    "lam_small": 0.03,
}
CONFIG = Config(
    title="WDRO-SI: test cost by K, and against ERM and WDRO",
    place="Figure 3",
    duration="about 15 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "curve_seeds": 2,
            "tuning_seeds": 1,
            "d": 3,
            "easy": [],
            "M": 4,
            "m": [2, 4],
            "widths": [4],
            "T_in": 3,
            "lam": [1.0],
            "wide": [0.1],
            "lam_small": 0.1,
            "K": [2],
            "K_compare": 2,
            "K_tune": 2,
            "T": 16,
            "points": 2,
            "test_points": 100,
            "grid": {"paper": [0.1], "parts": [1], "constant": [], "adam": [0.01]},
        },
        "quick": {
            **REAL,
            "easy": [],
            "seeds": 2,
            "curve_seeds": 2,
            "tuning_seeds": 1,
            "m": [10, 100],
            "lam": [1.0, 100.0],
            "wide": [0.01, 0.1],
            "K": [2, 6],
            "T": 200,
            "points": 4,
            "test_points": 5000,
            "grid": {"paper": [0.1], "parts": [4, 1], "constant": [0.03], "adam": [0.003]},
        },
        "full": {
            **REAL,
            "seeds": 12,
            "curve_seeds": 6,
            "tuning_seeds": 3,
            "lam": PRINTED,
            "wide": WIDE,
            "K": [2, 4, 6, 8],
            "T": 600,
            "points": 6,
            "test_points": 20_000,
            "grid": {
                "paper": [0.1, 0.3, 1.0],
                "parts": [8, 4, 2, 1],
                "constant": [0.03, 0.1, 0.3],
                "adam": [3e-4, 1e-3, 3e-3, 0.01, 0.03],
            },
        },
    },
)


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


def claims(records: Records) -> Any:
    return _formulation_claims.claims(records)


def render(records: Records, out: Path) -> Rendered:
    figure, axes = figures.panels(6, rows=2)
    for row, lam in ((axes[:2], 1.0), (axes[3:5], records.settings["lam_small"])):
        for panel, method in zip(row, ("DL-SGD", "RT-MLMC"), strict=True):
            draw_by_K(records, panel, method, lam)
        level(row)
    dims = both_dimensions(records)
    for panel, d in zip((axes[2], axes[5]), dims, strict=True):
        draw_by_m(records, panel, d)
    tables = [table(records, d) for d in dict.fromkeys(dims) for table in (by_m_table, end_table)]
    return Rendered([(figures.save(figure, out, "fig3"), caption(records))], [*tables, tuning(records)])


def caption(records: Records) -> str:
    s, dims = records.settings, both_dimensions(records)
    return (
        f"Newsvendor, {s['M']} contexts stored, synthetic as in the paper's appendix. Left, middle: test cost by K in "
        f"R^{dims[0]} with m = {max(s['m'])}, the paper's steps and, dashed, the best others; above at lambda = 1, the "
        f"least of the paper's, below at {s['lam_small']:g}. Bands: 95 % of {min(s['seeds'], s['curve_seeds'])} seeds, "
        f"of the change since the start. Right, {s['seeds']} seeds: the formulations, run and stopping time chosen on "
        f"validation; above in R^{dims[0]}, below in R^{dims[1]}; dotted with lambda from the wider grid (ERM: "
        "from as many starts); bars: 95 %, without what the seeds' markets differ by. "
        f"{s['test_points']:,} test contexts, the same for all, with the mean over demand in closed form (the paper: "
        "200,000 pairs). Rules divide contexts by their standard deviation and start near the best constant order; "
        f"hidden widths {s['widths']}, h = {_newsvendors.H:g} and b = {_newsvendors.B:g}, which the paper does not "
        "give. It prints no numbers for this figure."
    )


def level(panels: Any) -> None:
    """One scale for panels side by side, with room for their legends."""
    low, high = (pick(panel.get_ylim()[i] for panel in panels) for i, pick in enumerate((min, max)))
    for panel in panels:
        panel.set_ylim(low, high)
        figures.legend(panel, room=0.35, ncols=2)


def draw_by_K(records: Records, panel: Any, method: str, lam: float) -> None:
    """Curves of all K, each seed's own first cost replaced by the mean of all."""
    Ks = records.settings["K"]
    for i, K in enumerate(Ks):
        for steps, style in (("paper", "solid"), ("other", "dashed")):
            t, costs = curves(records, method=method, K=K, steps=steps, lam=lam)
            levelled = costs - costs[:, :1] + costs[:, 0].mean()
            label = f"K = {K}" if steps == "paper" else "_"  # no entry in the legend
            shade = figures.colour(method, i, len(Ks))
            figures.band(panel, t, levelled, method, label, color=shade, linestyle=style)
    rule = records.values("rule", kind="curve", method=method, steps="other")[0]
    panel.plot([], [], color=figures.colour(method), linestyle="dashed", label=f"the same, {rule}")
    panel.set(xlabel="upper iterations", ylabel="test cost", title=f"{method}, lambda = {lam:g}")


def draw_by_m(records: Records, panel: Any, d: int) -> None:
    ms = records.settings["m"]
    lines = [(method, label, grid) for label, grid in grids(records).items() for method in FORMULATIONS]
    costs = np.stack([[Group(records, d, method, m=m).chosen(grid) for m in ms] for method, _, grid in lines])
    found = within_seeds(costs.reshape(-1, costs.shape[-1]).T)
    for i, (method, label, _) in enumerate(lines):
        style, words = ("solid", method) if label == PAPER else ("dotted", "_")
        shift = 0.9 * (i - (len(lines) - 1) / 2)  # bars side by side
        part = found[i * len(ms) : (i + 1) * len(ms)]
        figures.points(panel, [m + shift for m in ms], part, method, words, linestyle=style)
    panel.plot([], [], color="0.3", linestyle="dotted", label="wider grid")
    constant = [float(np.mean(Group(records, d, "ERM", m=m).bound("constant"))) for m in ms]
    level_line(panel, ms, constant, "best constant", color="black", linestyle="dashed", linewidth=1.0)
    oracle = oracle_cost(_newsvendors.H, _newsvendors.B)
    level_line(panel, ms, [oracle] * len(ms), "oracle", color="0.5", linestyle="dashdot")
    panel.set(xlabel="demands per context, m", ylabel="test cost", title=f"formulations, R^{d}", xticks=ms)
    figures.legend(panel, room=0.45, ncols=2)


def level_line(panel: Any, ms: list[int], costs: list[float], label: str, **look: Any) -> None:
    """A cost to compare with; only named in the legend where the axis would show little more than the way to it."""
    low, high = panel.get_ylim()
    if low - 2 * (high - low) < min(costs) and max(costs) < high + 2 * (high - low):
        panel.plot(ms, costs, label=label, **look)
    else:
        panel.plot([], [], label=f"{label}: {np.mean(costs):.2f}", **look)
