"""Figures of comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.plots import COLOURS

SHOWN = 60  # last test rows in the panel of orders


def plot_comparison(comparison: Any, path: str | Path) -> Path:
    """Mean costs, with the interval of the difference to the first newsvendor; its orders beside demand."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = comparison.table
    figure = Figure(figsize=(10, 3.6), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    places = np.arange(len(table))[::-1]
    first = float(table["mean_cost"].iloc[0])
    error = np.abs(np.stack([table["difference"] - table["low"], table["high"] - table["difference"]]))
    left.barh(places, table["mean_cost"], color=[COLOURS[0], *["0.75"] * (len(table) - 1)])
    left.errorbar(table["mean_cost"], places, xerr=error, fmt="none", ecolor="0.2", capsize=3, linewidth=1)
    left.axvline(first, color=COLOURS[0], linewidth=0.8, linestyle=":")
    left.set_yticks(places, [str(name) for name in table.index])
    left.set_xlabel("mean cost of a row (bars: 95 % of the difference)")
    outcome = next(iter(comparison.outcomes.values()))
    rows = np.arange(max(0, len(outcome.costs) - SHOWN), len(outcome.costs))
    right.plot(rows, outcome.demand[rows].sum(axis=1), color="0.2", label="demand", linewidth=1.2)
    right.plot(rows, outcome.orders[rows].sum(axis=1), color=COLOURS[1], label="orders", linewidth=1.6)
    right.set_xlabel("test row")
    right.set_ylabel("units" if outcome.orders.shape[1] == 1 else "units, all products")
    right.grid(alpha=0.25)
    right.margins(y=0.2)
    right.legend(frameon=False, loc="upper left", ncols=2)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
