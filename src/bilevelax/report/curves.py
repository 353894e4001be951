"""Figures from histories, one look for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bilevelax.report.figures import figure_of, saved
from bilevelax.run.records.history import Row

LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # colour-blind safe


def curves(
    histories: Mapping[str, Sequence[Row]],
    *,
    y: str,
    x: Sequence[str] = ("t",),
    path: str | Path,
    labels: Mapping[str, str] | None = None,
    log: bool = True,
) -> Path:
    """Draw column y of each history against each column of x, one panel a column, and save the figure."""
    labels = labels or {}
    figure, panels = figure_of((1 + 3.6 * len(x), 3.4), len(x), sharey=True)
    for panel, column in zip(panels, x, strict=True):
        for colour, (name, rows) in zip(LINE_COLOURS, histories.items(), strict=False):
            points = [(row[column], row[y]) for row in rows if y in row and (not log or row[y] > 0)]
            panel.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=1.6)
        panel.set_xlabel(labels.get(column, column))
        panel.grid(alpha=0.25)
        if log:
            panel.set_yscale("log")
        if column in ("grad_g", "eta"):
            panel.set_xscale("log")
    panels[0].set_ylabel(labels.get(y, y))
    if len(histories) <= 3:
        panels[0].legend(frameon=False)
    else:  # many names would cover the curves
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8)
    return saved(figure, path)
