"""The commands `explain` and `update` of the newsvendor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bilevelax.base.text_table import show
from bilevelax.cli import _newsvendor_explain, _newsvendor_update
from bilevelax.cli import _newsvendor_options as options
from bilevelax.cli._newsvendor_work import load
from bilevelax.cli._options import AsJson
from bilevelax.cli._terminal import busy, print_json
from bilevelax.cli._terminal import results as say
from bilevelax.cli._terminal import say as tell


def explain(
    model: options.Folder,
    file: Annotated[Path, typer.Argument(help="CSV of the days whose orders are to be explained.")],
    row: Annotated[int, typer.Option(help="Row to show; all are written with --out.")] = 1,
    out: Annotated[Path | None, typer.Option(help="CSV to write: the columns of FILE and the part of each.")] = None,
    as_json: AsJson = False,
) -> None:
    """Why this order: what each column adds to or takes from the mean order of past days.

    Example: bilevelax newsvendor explain model/ tomorrow.csv --row 1
    """
    loaded = load(model)
    with busy(f"Explaining the orders of {file}"):
        found = _newsvendor_explain.explain_file(loaded, file)
    if not 1 <= row <= len(found.days):
        raise ValueError(f"`--row` must be a row of {file}, from 1 to {len(found.days)}. Got {row}.")
    targets = loaded.schema.targets
    columns = _newsvendor_explain.columns_of(found, targets)
    if out is not None:
        from bilevelax.tables.csv_files import write_with

        write_with(file, columns, out)
    if as_json:
        print_json({"rows": len(found.days), "parts": {name: [float(v) for v in a] for name, a in columns.items()}})
        return
    say(*found.notes)
    for j, target in enumerate(targets):
        title = f"{target} on {found.days[row - 1]}" if loaded.schema.date else f"{target}, {found.days[row - 1]}"
        show(_newsvendor_explain.table_of(found, row - 1, j, title))
    say("Against the mean order of past days. Parts add up; what two columns do together is shared equally.")
    say(*([] if out is None else [f"All rows: {out}"]))


def update(
    model: options.Folder,
    file: Annotated[Path, typer.Argument(help="CSV of newer days with their demand, with the columns of fit.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the new model; by default the same one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit again from the rows that a model keeps and newer ones, with the same settings.

    Example: bilevelax newsvendor update model/ last_week.csv
    """
    loaded = load(model)
    with busy(f"Reading {file}"):
        news = _newsvendor_update.read_news(loaded, file)
    tell(f"Learning from {len(news.past.X)} rows")
    place = model if out is None else out
    _newsvendor_update.refit(loaded, news.past, place)
    if as_json:
        print_json({"model": str(place), "rows": len(news.past.X), "new": news.new, "notes": news.notes})
        return
    head = f"{news.new} new rows, {news.known} known already; learnt from {len(news.past.X)}"
    say(head, *news.notes, f"Model: {place}")
