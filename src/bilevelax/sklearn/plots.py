"""Figures of comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.base.text_table import plain
from bilevelax.report.figures import figure_of, saved
from bilevelax.sklearn.evaluation import OURS, Evaluated, drawn_rows, likely_demand
from bilevelax.sklearn.evaluation_page import costs_told, headline, method, period, row_word

# of methods by their numbers, as on the page in a light room
COLOURS = ("#0068a8", "#c04a06", "#00795a", "#a23f7b", "#806200", "#5b4bb5", "#3a434f", "#a3202d")
SHOWN = 90  # last test rows in the panel of orders
INK, MISSED = COLOURS[6], COLOURS[7]


def plot_orders(evaluated: Evaluated, path: str | Path) -> Path:
    """What the rule saves, its orders beside demand and the range of likely demand, and the cost of each method.

    Args:
        evaluated: of the rule and other methods.
        path: a file to write; its ending says how (.png, .svg, .pdf).
    """
    word = row_word(evaluated)
    figure, (left, right) = figure_of((11, 4.6), 2, width_ratios=(1.7, 1))
    figure.suptitle(_wrapped(headline(evaluated, word)), x=0.01, ha="left", fontsize=12, fontweight="bold")
    _orders(left, evaluated)
    _costs(right, evaluated, word)
    figure.supxlabel(f"{period(evaluated)}{costs_told(evaluated)}", x=0.01, ha="left", fontsize=8, color="0.35")
    return saved(figure, path)


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 100)).replace("$", r"\$")


def _orders(panel: Any, evaluated: Evaluated) -> None:
    """Of all products together, on the last days."""
    where, orders, demand = _sums(evaluated)
    if not evaluated.days_are_sums() and (likely := likely_demand(evaluated, drawn_rows(evaluated)[-SHOWN:])):
        band = likely.low[:, -1], likely.high[:, -1]
        panel.fill_between(where, *band, color=COLOURS[0], alpha=0.16, linewidth=0, label="likely demand: 9 in 10")
    panel.plot(where, orders, color=COLOURS[0], linewidth=1.6, label="order of this rule")
    met = demand <= orders
    panel.plot(where, demand, color=INK, linewidth=0.7, alpha=0.45)
    panel.plot(where[met], demand[met], "o", markersize=3, color=INK, label="demand that was met")
    panel.plot(where[~met], demand[~met], "o", markersize=3, color=MISSED, label="demand above the order")
    word = "day" if evaluated.days_are_sums() else row_word(evaluated)
    panel.set_title(f"Orders and demand, last {len(where)} {word}s", loc="left", fontsize=10)
    several = len(evaluated.products) > 1 or evaluated.days_are_sums()
    panel.set_ylabel("units, all products" if several else "units")
    if evaluated.dates is None:
        panel.set_xlabel("row")
    else:
        import matplotlib.dates as ticks

        locator = ticks.AutoDateLocator(maxticks=7)
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(ticks.ConciseDateFormatter(locator, show_offset=False))
    _plain_axis(panel.yaxis)
    panel.grid(alpha=0.25)
    panel.margins(x=0.01)
    panel.set_ylim(top=panel.get_ylim()[1] + 0.18 * np.ptp(panel.get_ylim()))  # room for the names
    panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    panel.spines[["top", "right"]].set_visible(False)


def _sums(evaluated: Evaluated) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(dates or numbers of rows, orders, demand) of all products: a row each, or a date each where it has several."""
    rows, outcome = drawn_rows(evaluated), evaluated.outcome()
    orders, demand = outcome.orders[rows].sum(axis=1), outcome.demand[rows].sum(axis=1)
    where = rows + 1 if evaluated.dates is None else evaluated.dates[rows]
    if evaluated.days_are_sums():
        where, at = np.unique(where, return_inverse=True)
        orders, demand = np.bincount(at, orders), np.bincount(at, demand)
    return where[-SHOWN:], orders[-SHOWN:], demand[-SHOWN:]


def _costs(panel: Any, evaluated: Evaluated, word: str) -> None:
    """Cheapest on top; whiskers are the 95 % range of the difference to the rule."""
    table = evaluated.comparison.table.sort_values("mean_cost")
    places = np.arange(len(table))[::-1]
    error = np.abs(np.stack([table["difference"] - table["low"], table["high"] - table["difference"]]))
    panel.barh(places, table["mean_cost"], color=[COLOURS[method(str(name)).colour] for name in table.index])
    panel.errorbar(table["mean_cost"], places, xerr=error, fmt="none", ecolor="0.5", capsize=3, linewidth=1)
    for place, cost, whisker in zip(places, table["mean_cost"], error[1], strict=True):
        panel.annotate(
            plain(cost), (cost + whisker, place), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    labels = panel.set_yticks(places, [method(str(name)).label.replace("$", r"\$") for name in table.index])
    labels[list(table.index).index(OURS)].label1.set_fontweight("bold")
    panel.set_title(f"Mean cost of a {word}", loc="left", fontsize=10)
    panel.set_xlabel("whiskers: 95 % range of the difference", fontsize=8)
    panel.margins(x=0.15)
    panel.spines[["top", "right"]].set_visible(False)
    _plain_axis(panel.xaxis)


def _plain_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
