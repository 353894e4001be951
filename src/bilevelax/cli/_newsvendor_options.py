"""Options of the newsvendor commands: each is worded once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Folder = Annotated[Path, typer.Argument(help="Folder written by fit.")]
PastFile = Annotated[Path, typer.Argument(help="CSV of past days, one row each.")]
Target = Annotated[str, typer.Option(help="Column of the demand; several, separated by commas.")]
Holding = Annotated[str, typer.Option(help="Cost of a unit left over; per product: steak=1,fish=2.")]
Backlog = Annotated[str | None, typer.Option(help="Cost of a unit missing, by default 3; per product: steak=9,fish=5.")]
ServiceLevel = Annotated[
    str | None,
    typer.Option(help="Share of days to cover demand on, instead of --backlog: .95; per product: steak=.95,fish=.9."),
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


def penalty_option(word: str) -> Any:
    if word in ("cv", "auto"):
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"`--penalty` must be a number, inf, cv or auto. Got {word!r}.") from None
