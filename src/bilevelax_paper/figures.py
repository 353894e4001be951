"""One look for all figures: one colour per method, bands over seeds, SVG and PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.report.curves import LINE_COLOURS
from bilevelax.report.figures import errors, figure_of, saved, spread
from bilevelax.report.figures import legend as legend
from bilevelax.report.figures import reference as reference
from bilevelax.report.figures import ticks as ticks

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = LINE_COLOURS
OTHER = "#7F7F7F"  # a method that is not listed
METHODS: Mapping[str, str] = {
    "RT-MLMC": BLUE,
    "RT-MLMC, less noise": "#003F7F",
    "DL-SGD": ORANGE,
    "MAML": GREEN,
    "m-step MAML": "#44AA99",
    "BSVRB": PINK,
    "SOBA": YELLOW,
    "ALSET": "#882255",
    "ERM": BLACK,
    "WDRO": SKY,
    "WDRO-SI": BLUE,  # solved by RT-MLMC
    "SGD": BLACK,
    "MLMC": "#999933",
    "RT-MLMC, sample means": "#661100",
}
WIDTH, HEIGHT = 3.4, 2.8  # inches of one panel
SIZE = 9  # points of titles and labels; ticks and legends are smaller
LOG_LOG: Any = {"xscale": "log", "yscale": "log"}


def colour(method: str, i: int = 0, n: int = 1) -> Any:
    """The method's colour; of n variants (e.g. of K) number i, from light to full."""
    from matplotlib.colors import to_rgb

    base = np.asarray(to_rgb(METHODS.get(method, OTHER)))
    strength = 1.0 if n == 1 else 0.35 + 0.65 * i / (n - 1)
    return tuple(1 - strength * (1 - base))


def panels(n: int = 1, rows: int = 1, **kw: Any) -> tuple[Any, np.ndarray]:
    """A figure and its n panels (of ``rows`` rows), a flat array."""
    columns = -(-n // rows)
    figure, axes = figure_of((WIDTH * columns, HEIGHT * rows), columns, rows, dpi=100, **kw)
    for panel in axes:
        panel.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def band(axes: Any, x: Sequence[float], seeds: Any, method: str, label: str | None = None, **kw: Any) -> None:
    """The mean over seeds (rows) in the method's colour, its 95 % band, and every seed as a thin line."""
    spread(axes, x, seeds, label=method if label is None else label, color=kw.pop("color", colour(method)), **kw)


def points(
    axes: Any, x: Sequence[float], intervals: Sequence[Any], method: str, label: str | None = None, **kw: Any
) -> None:
    """Estimates in the method's colour with their confidence intervals as error bars."""
    errors(axes, x, intervals, label=method if label is None else label, **{"color": colour(method), **kw})


def save(figure: Any, out: Path, name: str) -> Path:
    """Write NAME.svg and NAME.png to ``out``; returns the path of the SVG."""
    for axes in figure.axes:
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_fontsize(SIZE)
        axes.tick_params(labelsize=SIZE - 1, which="both")
    path = saved(figure, out / f"{name}.svg", metadata={"Date": None})
    return saved(figure, path.with_suffix(".png"), dpi=150).with_suffix(".svg")
