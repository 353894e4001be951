"""The page of orders: sentences, tables and bars written here, charts drawn by its script from the JSON beside them."""

from __future__ import annotations

from typing import Any, NamedTuple

from bilevelax.report.page_tables import PageTable
from bilevelax.report.render import embedded, filled, scripts


class Tile(NamedTuple):
    """A number that stands alone, marked where it is ``bad``."""

    name: str
    value: str
    note: str
    bad: bool = False


class Bar(NamedTuple):
    """A bar with its number; ``share`` is its length, 0 to 1."""

    name: str
    value: str
    share: float
    colour: int
    ours: bool = False


class Driver(NamedTuple):
    """How much a column moves the orders: words beside a bar of length ``share``."""

    name: str
    value: str
    share: float


class OrdersPage(NamedTuple):
    """All that the page tells. ``word``: what a row is called; ``data``: what the script draws."""

    title: str
    lead: str
    headline: str
    details: list[str]
    tiles: list[Tile]
    word: str
    bars: list[Bar]
    tables: list[PageTable]
    drivers: list[Driver]
    movable: list[str]
    costs_told: str
    warnings: list[str]
    notes: list[str]
    data: dict[str, Any]


def orders_page(page: OrdersPage) -> str:
    """The page as text. Everything that comes from a file is escaped, here or by the script."""
    values = page._asdict() | {"data": embedded(page.data)}
    return filled("orders.html", **values, **scripts("parts.js", "chart.js", "dates.js", "orders.js"))
