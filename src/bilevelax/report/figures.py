"""Figures without a window: panels and files, the same for curves, comparisons and the study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.base.statistics import half_width

SVG: Any = {"svg.hashsalt": "bilevelax", "svg.fonttype": "path"}  # equal data, equal file; fonts are not everywhere


def figure_of(size: tuple[float, float], columns: int = 1, rows: int = 1, dpi: int = 150, **kw: Any) -> tuple[Any, Any]:
    """A figure of so many inches and its panels, a flat array, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=dpi)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **kw).ravel()


def saved(figure: Any, path: str | Path, **kw: Any) -> Path:
    """The figure as a file in a folder that may be new; the ending says how (.png, .svg, .pdf)."""
    from matplotlib import rc_context

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(SVG):
        figure.savefig(path, **kw)
    return path


def reference(axes: Any, x: Any, y: Any, label: str, linestyle: str = "dashed") -> None:
    """What theory or the paper says: dashed, or otherwise broken where there are two, and black."""
    axes.plot(x, y, color="black", linestyle=linestyle, linewidth=1.0, label=label)


def spread(axes: Any, x: Sequence[float], seeds: Any, *, label: str, color: Any, **kw: Any) -> None:
    """The mean over seeds (rows), its 95 % band, and every seed as a thin line."""
    seeds = np.atleast_2d(np.asarray(seeds, float))
    centre, half = seeds.mean(0), half_width(seeds)
    if len(seeds) > 1:
        axes.plot(x, seeds.T, color=color, linewidth=0.4, alpha=0.25)
        low = centre - half
        if axes.get_yscale() == "log":
            low = np.maximum(low, seeds.min(0))
        axes.fill_between(x, low, centre + half, color=color, alpha=0.2, linewidth=0)
    axes.plot(x, centre, color=color, label=label, linewidth=1.6, **kw)


def errors(axes: Any, x: Sequence[float], intervals: Sequence[Any], **kw: Any) -> None:
    """Estimates with their confidence intervals as error bars; what is not finite is not drawn."""
    value, low, high = np.where(np.isfinite(intervals), intervals, np.nan).T
    look = {"marker": "o", "markersize": 3.5, "linewidth": 1.2, "capsize": 2, **kw}
    axes.errorbar(x, value, yerr=np.maximum([value - low, high - value], 0.0), **look)


def ticks(axes: Any, values: Sequence[float]) -> None:
    """Exactly these ticks of x, in plain numbers: for short logarithmic axes."""
    axes.set_xticks(list(values), [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)


def legend(axes: Any, room: float = 0.0, **kw: Any) -> None:
    """A small legend, above the curves where the panel is made higher by ``room`` of its height."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** room if axes.get_yscale() == "log" else high + room * (high - low))
    axes.legend(**{"frameon": False, "fontsize": 8, "loc": "upper right", **kw})
