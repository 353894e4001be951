"""The evaluation as one page for who plans and who pays: sentences, tables and what its script draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.text_table import plain
from bilevelax.report.orders_page import Bar, Driver, OrdersPage, Tile, orders_page
from bilevelax.report.page_tables import PageCell, PageLine, PageTable
from bilevelax.sklearn import evaluation as parts
from bilevelax.sklearn._scored import CostColumn, costs_of
from bilevelax.sklearn.evaluation import BAND, ERRORS, OURS, PLAIN, Evaluated, Saving

LISTED = 200  # products in the table of the page
SHORT_OF_TARGET = 0.03  # service below its target by more than this is marked


class Method(NamedTuple):
    """How a method is called, and the number of its colour."""

    label: str
    colour: int


METHODS = {
    OURS: Method("this rule", 0),
    PLAIN: Method("same order every day", 6),
    "neighbours": Method("most similar days", 4),
    "forest": Method("random forest", 2),
    "linear quantile": Method("straight-line rule", 3),
    "boosted quantile": Method("boosted trees", 1),
}


def method(name: str) -> Method:
    return METHODS.get(name, Method(name, 5))


def page(
    evaluated: Evaluated,
    source: str,
    notes: Sequence[str],
    warnings: Sequence[str] = (),
    groups: Mapping[str, list[int]] | None = None,
) -> str:
    """The page as text.

    Args:
        evaluated: the rule, other methods, and how they did.
        source: name of the file of later days.
        notes: about the model.
        warnings: about the data: what to know before the result is believed.
        groups: columns of ``X`` that tell of one thing, by its name: what moves the orders.
    """
    word, rows = row_word(evaluated), parts.drawn_rows(evaluated)
    likely = parts.likely_demand(evaluated, rows)
    curves = parts.wrong_forecasts(evaluated) if evaluated.movable else {}
    tables = [method_table(evaluated, word)]
    if len(parts.parts_of(evaluated)) > 1:
        tables.append(product_table(evaluated, word))
    return orders_page(
        OrdersPage(
            title=f"Orders for {len(evaluated.X):,} {word}s",
            lead=f"{period(evaluated)}{source}; demand in {', '.join(evaluated.products)}.",
            headline=headline(evaluated, word),
            details=details(evaluated),
            tiles=tiles(evaluated, word, likely),
            word=word,
            bars=bars(evaluated),
            tables=tables,
            drivers=drivers(evaluated, groups or {}),
            movable=list(evaluated.movable) if curves else [],
            costs_told=costs_told(evaluated),
            warnings=list(warnings),
            notes=list(notes),
            data={
                "orders": orders_data(evaluated, rows, None if evaluated.days_are_sums() else likely),
                "errors": errors_data(curves, word),
            },
        )
    )


def row_word(evaluated: Evaluated) -> str:
    return "day" if evaluated.rows_are_days() else "row"


def period(evaluated: Evaluated) -> str:
    if evaluated.dates is None:
        return ""
    days = evaluated.dates.astype("datetime64[D]")
    return f"{days.min()} to {days.max()}. "


def headline(evaluated: Evaluated, word: str) -> str:
    """What the rule saves against what needs no forecast, in money and in units."""
    saving = parts.saving_against(evaluated, PLAIN)
    paid = f"{plain(saving.cost)} instead of {plain(saving.other)}"
    over = f"over these {len(evaluated.X):,} {word}s"
    same = f"the same order every {word}" if evaluated.series is None else "the same order of a product every day"
    units = f"with {change(saving.over)} units left over and {change(saving.missing)} missing"
    if not saving.is_sure:
        return f"The rule costs about as much as {same}: {paid} {over}, {units}."
    gap = plain(abs(saving.other - saving.cost))
    if saving.cost < saving.other:
        told = f"The rule saves {gap} ({share(saving.share)}) {over}: it costs {paid}"
        return f"{told} with {same}, {units}."
    return f"The rule costs {gap} ({share(-saving.share)}) more than {same} {over}: {paid}, {units}."


def details(evaluated: Evaluated) -> list[str]:
    """How sure that is, and the strongest other method."""
    saving, name = parts.saving_against(evaluated, PLAIN), parts.best_other(evaluated)
    found = [f"95 % range of the saving: {plain(saving.low)} to {plain(saving.high)}."]
    if name != PLAIN:
        found.append(against(parts.saving_against(evaluated, name)))
    return found


def against(saving: Saving) -> str:
    """The rule beside another method, in one sentence."""
    label, gap = method(saving.name).label, plain(abs(saving.other - saving.cost))
    word = "less" if saving.cost < saving.other else "more"
    sure = "" if saving.is_sure else ", which these rows are too few to be sure of"
    return f"Against the best other method ({label}) it costs {gap} {word} ({share(abs(saving.share))}){sure}."


def change(units: float) -> str:
    return f"{abs(units):,.0f} {'fewer' if units >= 0 else 'more'}"


def share(value: float) -> str:
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def costs_told(evaluated: Evaluated) -> str:
    costs = costs_of(evaluated.rule, evaluated.X, len(evaluated.products))
    given = evaluated.rule.holding_cost, evaluated.rule.backlog_cost
    left, missing = (amounts(value, each) for value, each in zip(given, costs, strict=True))
    return f"Costs are in the money that you gave: {left} for a unit left over, {missing} for a unit missing."


def amounts(given: Any, of_rows: np.ndarray) -> str:
    """One for all, one for each product, or the range of those of the rows."""
    if isinstance(given, CostColumn):
        return f"{of_rows.min():,.10g} to {of_rows.max():,.10g} (by product)"
    return ", ".join(f"{each:,.10g}" for each in np.ravel(given))


def tiles(evaluated: Evaluated, word: str, likely: parts.Likely | None) -> list[Tile]:
    ours, n = evaluated.comparison.table.loc[OURS], len(evaluated.X)
    over, missing = parts.wrong_units(evaluated.outcome())
    target = float(parts.targets(evaluated).mean())
    made = [
        Tile(
            "Service",
            share(ours["service_level"]),
            f"orders that covered demand; target {share(target)}",
            bad=ours["service_level"] < target - SHORT_OF_TARGET,
        ),
        Tile("Demand met", share(ours["fill_rate"]), "of all units asked for"),
        Tile(
            f"Cost of a {word}",
            plain(ours["mean_cost"]),
            f"dearest tenth of the {word}s: {plain(ours['worst_decile_cost'])}",
        ),
        Tile("Left over", plain(over / n), f"units a {word}"),
        Tile("Missing", plain(missing / n), f"units a {word}"),
    ]
    if likely is not None:
        made.append(Tile("Likely range held", share(likely.held), f"of demands; aim {share(BAND[1] - BAND[0])}"))
    return made


def bars(evaluated: Evaluated) -> list[Bar]:
    """Cheapest first."""
    costs = evaluated.comparison.table["mean_cost"].sort_values()
    top = max(float(costs.max()), 1e-300)
    return [
        Bar(method(name).label, plain(float(cost)), float(cost) / top, method(name).colour, name == OURS)
        for name, cost in costs.items()
    ]


def method_table(evaluated: Evaluated, word: str) -> PageTable:
    """Cheapest first."""
    table, lines = evaluated.comparison.table.sort_values("mean_cost"), []
    for name, row in table.iterrows():
        over, missing = (units / len(evaluated.X) for units in parts.wrong_units(evaluated.outcome(str(name))))
        ranged = "" if name == OURS else f"{plain(row['low'], signed=True)} to {plain(row['high'], signed=True)}"
        cells = [
            PageCell(method(str(name)).label),
            figure(row["mean_cost"]),
            PageCell(
                NOTHING if name == OURS else plain(row["difference"], signed=True),
                row["difference"],
                note=ranged,
                numeric=True,
            ),
            PageCell(share(row["service_level"]), row["service_level"], numeric=True),
            PageCell(share(row["fill_rate"]), row["fill_rate"], numeric=True),
            figure(over),
            figure(missing),
            figure(row["worst_decile_cost"]),
        ]
        lines.append(PageLine(cells))
    columns = ["method", f"cost of a {word}", "against this rule", "orders that cover", "demand met"]
    columns += [f"left over a {word}", f"missing a {word}", "cost of the dearest tenth"]
    return PageTable("Small print: 95 % range of the difference", columns, lines)


NOTHING = "\N{EN DASH}"


def product_table(evaluated: Evaluated, word: str) -> PageTable:
    """Dearest first."""
    lines = []
    products = parts.by_product(evaluated)
    for row in products[:LISTED]:
        saved = 1 - row.cost / row.plain if row.plain else 0.0
        figures = (figure(row.cost), figure(row.plain), PageCell(share(saved), saved, numeric=True))
        service = PageCell(share(row.service), row.service, note=f"target {share(row.target)}", numeric=True)
        lines.append(
            PageLine([PageCell(row.name), *figures, service, PageCell(share(row.filled), row.filled, numeric=True)])
        )
    columns = ["product", f"cost of a {word}", f"same order every {word}", "saved", "orders that cover", "demand met"]
    more = f"; {len(products) - LISTED:,} more are not listed" if len(products) > LISTED else ""
    return PageTable(f"By product, dearest first{more}", columns, lines)


def drivers(evaluated: Evaluated, groups: Mapping[str, list[int]]) -> list[Driver]:
    """Largest first; what moves nothing is left out."""
    sizes = {name: size for name, size in parts.driver_sizes(evaluated, groups).items() if size > 0}
    top = max(sizes.values(), default=1.0)
    return [Driver(name, f"{plain(size)} units", size / top) for name, size in sizes.items()]


def figure(value: float) -> PageCell:
    return PageCell(plain(float(value)), float(value), numeric=True)


def orders_data(evaluated: Evaluated, rows: np.ndarray, likely: parts.Likely | None) -> dict[str, Any]:
    """What the chart of orders shows: days since 1970 where there are dates; each product, before them their sum."""
    outcome, several = evaluated.outcome(), len(evaluated.products) > 1
    with_sum = lambda a: np.column_stack([a, a.sum(axis=1)])[rows] if several else a[rows]
    orders, demand = with_sum(outcome.orders), with_sum(outcome.demand)
    where = rows + 1.0
    if evaluated.dates is not None:
        where = evaluated.dates[rows].astype("datetime64[m]").astype(float) / (24 * 60)
    entries = [
        {"name": name, "orders": short(orders[:, j]), "demand": short(demand[:, j])}
        | ({} if likely is None else {"low": short(likely.low[:, j]), "high": short(likely.high[:, j])})
        for j, name in enumerate([*evaluated.products, *["All products"] * several])
    ]
    return {
        "x": np.round(where, 4).tolist(),
        "dated": evaluated.dates is not None,
        "word": row_word(evaluated),
        "products": entries[-1:] + entries[:-1] if several else entries,
        "colour": method(OURS).colour,
    }


def short(values: np.ndarray) -> list[float]:
    """Five digits are more than a screen shows."""
    return [float(f"{value:.5g}") for value in values]


def errors_data(curves: dict[str, list[float]], word: str) -> dict[str, Any]:
    lines = [
        {"name": method(name).label, "colour": method(name).colour, "costs": short(np.array(costs))}
        for name, costs in sorted(curves.items(), key=lambda item: item[1][-1])
    ]
    return {"sizes": list(ERRORS), "lines": lines, "word": word}
