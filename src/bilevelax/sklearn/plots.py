"""Figures of comparisons."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.report.curves import LINE_COLOURS
from bilevelax.report.figures import SVG, figure_of, saved

SHOWN = 60  # last test rows in the panel of orders


def plot_comparison(comparison: Any, path: str | Path) -> Path:
    """Mean costs, with the interval of the difference to the first newsvendor; its orders beside demand.

    Args:
        comparison: of `compare`.
        path: a file to write; its ending says how (.png, .svg, .pdf).
    """
    figure, (left, right) = figure_of((10, 3.6), 2, width_ratios=(1, 1.6))
    _costs(left, comparison.table)
    _orders(right, next(iter(comparison.outcomes.values())))
    return saved(figure, path)


def drawings(comparison: Any) -> dict[str, str]:
    """The two panels as SVG: ``costs`` and ``orders``."""
    figure, (panel,) = figure_of((8, 0.6 + 0.36 * len(comparison.table)))
    _costs(panel, comparison.table)
    found = {"costs": _svg(figure)}
    figure, (panel,) = figure_of((8, 3.2))
    _orders(panel, next(iter(comparison.outcomes.values())))
    return {**found, "orders": _svg(figure)}


def _svg(figure: Any) -> str:
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return file.getvalue()


def _costs(panel: Any, table: Any) -> None:
    places = np.arange(len(table))[::-1]
    first = float(table["mean_cost"].iloc[0])
    error = np.abs(np.stack([table["difference"] - table["low"], table["high"] - table["difference"]]))
    panel.barh(places, table["mean_cost"], color=[LINE_COLOURS[0], *["0.75"] * (len(table) - 1)])
    panel.errorbar(table["mean_cost"], places, xerr=error, fmt="none", ecolor="0.2", capsize=3, linewidth=1)
    panel.axvline(first, color=LINE_COLOURS[0], linewidth=0.8, linestyle=":")
    panel.set_yticks(places, [str(name).replace("$", r"\$") for name in table.index])  # no formulas
    panel.set_xlabel("mean cost of a row (bars: 95 % of the difference)")


def _orders(panel: Any, outcome: Any) -> None:
    rows = np.arange(max(0, len(outcome.costs) - SHOWN), len(outcome.costs))
    panel.plot(rows, outcome.demand[rows].sum(axis=1), color="0.2", label="demand", linewidth=1.2)
    panel.plot(rows, outcome.orders[rows].sum(axis=1), color=LINE_COLOURS[1], label="orders", linewidth=1.6)
    panel.set_xlabel("test row")
    panel.set_ylabel("units" if outcome.orders.shape[1] == 1 else "units, all products")
    panel.grid(alpha=0.25)
    panel.margins(y=0.2)
    panel.legend(frameon=False, loc="upper left", ncols=2)
