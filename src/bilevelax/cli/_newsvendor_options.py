"""Options of the newsvendor commands: each is worded once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

Folder = Annotated[Path, typer.Argument(help="Folder written by fit.")]
PastFile = Annotated[Path, typer.Argument(help="CSV of past days, one row each.")]
Target = Annotated[str, typer.Option(help="Column of the demand; several, separated by commas.")]
Holding = Annotated[str, typer.Option(help="Cost of a unit left over; per product: steak=1,fish=2.")]
Backlog = Annotated[str | None, typer.Option(help="Cost of a unit missing, by default 3; per product: steak=9,fish=5.")]
ServiceLevel = Annotated[
    float | None, typer.Option(help="Share of days to cover demand on, such as .95, instead of --backlog.")
]
Date = Annotated[
    str | None, typer.Option(help="Column of dates; by default `date`, `Date` or `Datum`, if there is one.")
]
Dates = Annotated[
    str,
    typer.Option(help="plain (weekday, month), season (and a smooth day of the year), trend (and years), or auto."),
]
Category = Annotated[
    str | None, typer.Option(help="Columns of numbers that are names (stores, items), separated by commas.")
]
Ids = Annotated[
    str | None,
    typer.Option("--id", help="Columns that name the product of a row, such as store,item: one model for all."),
]
Stockout = Annotated[
    str | None, typer.Option(help="Column that says whether the day sold out (1 or 0), or holds the stock of the day.")
]
Lags = Annotated[
    str | None, typer.Option(help="Past demand as context: days back, such as 7,28; auto: these if they pay.")
]
Holidays = Annotated[str | None, typer.Option(help="Public holidays of a country: DE, FR, US, DE-BY, ...")]
LeadTime = Annotated[int, typer.Option(help="Days until an order arrives; orders then fill up the stock.")]
Perturb = Annotated[
    str | None, typer.Option(help="Columns whose values may be off, separated by commas; by default measurements.")
]
Penalty = Annotated[str, typer.Option(help="Price of moving them: a number, inf, cv, or auto to choose.")]
Folds = Annotated[int, typer.Option(help="Folds in time that choose; 1: the last fifth of the rows.")]
Policy = Annotated[str, typer.Option(help="mlp, soft_forest, linear, or auto to choose.")]
MaxIter = Annotated[int | None, typer.Option(help="Training steps; by default 800, more for many rows.")]
Pack = Annotated[
    float | None,
    typer.Option(help="Order whole packs of so many units; by default 1 where demand is whole, 0: any amount."),
]
Minimum = Annotated[float, typer.Option(help="Order at least so many units.")]
OnHand = Annotated[str | None, typer.Option(help="With a lead time: column of the stock, by default on_hand.")]
OnOrder = Annotated[
    str | None, typer.Option(help="With a lead time: column of what is on its way, by default on_order.")
]
Capacity = Annotated[
    str | None, typer.Option(help="Units in all products of a day, such as 200, or a column of them: the best split.")
]
Shift = Annotated[
    float | None, typer.Option(help="Also with columns that may move off by so many standard deviations, such as 1.")
]


def cost_option(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`--{name}` must be a positive number. Got {value:g}.")
    return value


def costs_option(name: str, words: str, targets: list[str]) -> Any:
    """A cost, or a list with one for each target from ``steak=9,fish=5``."""
    try:
        return cost_option(name, float(words))
    except ValueError as error:
        if "=" not in words:
            raise ValueError(
                str(error)
                if "positive" in str(error)
                else f"`--{name}` must be a positive number, or "
                f"one for each product such as steak=9,fish=5. Got {words!r}."
            ) from None
    found: dict[str, float] = {}
    for part in words.split(","):
        product, _, value = part.rpartition("=")
        try:
            found[product.strip()] = cost_option(name, float(value))
        except ValueError:
            raise ValueError(f"`--{name}` must give each product a positive number. Got {part.strip()!r}.") from None
    odd = [product for product in found if product not in targets]
    lost = [product for product in targets if product not in found]
    if odd or lost:
        what = f"names {odd[0]!r}, which is none of them" if odd else f"has no number for {lost[0]!r}"
        raise ValueError(f"`--{name}` must have one number for each of {', '.join(targets)}; it {what}.")
    return [found[product] for product in targets]


def backlog_of(holding: Any, backlog: str | None, service_level: float | None, targets: list[str]) -> Any:
    """The cost of a unit missing; b / (b + h) is the share of days on which the best order covers demand."""
    if service_level is None:
        return costs_option("backlog", "3" if backlog is None else backlog, targets)
    if backlog is not None:
        raise ValueError("`--service-level` and `--backlog` say the same thing: give one of them.")
    if not 0 < service_level < 1:
        raise ValueError(f"`--service-level` must be between 0 and 1, such as .95. Got {service_level:g}.")
    odds = service_level / (1 - service_level)
    return [h * odds for h in holding] if isinstance(holding, list) else holding * odds


def penalty_option(word: str) -> Any:
    if word in ("cv", "auto"):
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"`--penalty` must be a number, inf, cv or auto. Got {word!r}.") from None


def prices(
    holding: str, backlog: str | None, service_level: float | None, targets: list[str] | None, ids: str | None = None
) -> dict[str, Any]:
    """The two costs; without targets, those given per product are not looked at yet."""
    if ids and "=" in f"{holding}{backlog}":
        raise ValueError(
            "Costs per product and --id together are not supported: give one cost, or fit products of different costs "
            "from files of their own."
        )
    if targets is None:
        holding = "1" if "=" in holding else holding
        backlog = "1" if backlog and "=" in backlog else backlog
    h = costs_option("holding", holding, targets or [])
    return {"holding_cost": h, "backlog_cost": backlog_of(h, backlog, service_level, targets or [])}
