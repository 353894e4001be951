"""Options of the newsvendor commands: each is worded once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

OWNER = "RobustNewsvendor"  # whose sentences are put into the words of options
POLICIES = ("mlp", "soft_forest", "linear", "auto")

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
Size = Annotated[
    str | None,
    typer.Option(help="What a unit takes of --capacity, room or money: steak=2,fish=1; with --id, a column, too."),
]
Shift = Annotated[
    float | None, typer.Option(help="Also with columns that may move off by so many standard deviations, such as 1.")
]


OPTIONS = {"cv": "--folds", "max_iter": "--max-iter", "random_state": "--seed"}  # of settings with other names
OPTIONS |= {name: f"--{name}" for name in ("penalty", "policy", "perturb")}
OTHERS = {"conditional": "the law of demand"}  # settings that no option sets


def penalty_option(word: str) -> Any:
    if word in ("cv", "auto"):
        return word
    try:
        penalty = float(word)
    except ValueError:
        raise ValueError(f"`--penalty` must be a number, inf, cv or auto. Got {word!r}.") from None
    if penalty > 0:
        return penalty
    raise ValueError(f"`--penalty` must be a positive number. Got {word}.")


def policy_option(word: str) -> str:
    if word in POLICIES:
        return word
    raise ValueError(f"`--policy` must be {', '.join(POLICIES[:-1])} or {POLICIES[-1]}. Got {word!r}.")


def steps_option(steps: int | None) -> int | None:
    if steps is None or steps >= 1:
        return steps
    raise ValueError(f"`--max-iter` must be 1 or more. Got {steps}.")


def in_option_names(sentence: str) -> str:
    """A sentence of the estimator as one of the command line: settings are options there, and the model is a model."""

    def option(found: re.Match[str]) -> str:
        name = found[1]
        return f"`{OPTIONS[name]}`" if name in OPTIONS else OTHERS.get(name, name.replace("_", " "))

    told = re.sub(rf"`(\w+)` of {OWNER}", option, sentence).replace(f" of {OWNER}", "").replace(OWNER, "model")
    return told[:1].upper() + told[1:]


@contextlib.contextmanager
def told_in_option_names() -> Iterator[None]:
    """What the estimator refuses is refused in the words of who typed the command."""
    try:
        yield
    except ValueError as error:
        if OWNER not in str(error):
            raise
        raise ValueError(in_option_names(str(error))) from error
