"""``bilevelax sweep CONFIG.toml``: a grid over settings and seeds, compared in one table and one plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bilevelax.base import text_table
from bilevelax.base.text_table import Table, number
from bilevelax.cli._terminal import print_json, say, told_when_stopped


def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file; see the page on scaling.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the records; by default sweeps/NAME.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Groups that run side by side.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the settings, best first, as JSON.")] = False,
) -> None:
    """Run a grid. Cells that differ in step and seed are one vectorised program, others take turns.

    Cells that diverge, or are surely worse than others, are given up early. The same command goes on
    where it was stopped.
    """
    from bilevelax.cli import _sweep_groups
    from bilevelax.cli.sweep_config import groups, read

    fixed, grid = read(config)
    folder, metric = out or Path("sweeps") / config.stem, fixed["metric"]
    todo = groups(fixed, grid)
    say(f"{sum(len(group.cells) for group in todo)} cells in {len(todo)} programs, {fixed['T']} steps each")
    with told_when_stopped():
        if processes == 1:
            done = _sweep_groups.run_in_turn(todo, folder, metric)
        else:
            done = _sweep_groups.run_side_by_side(todo, folder, processes)
    rows = _sweep_groups.settings_table(done, metric)
    cells = _sweep_groups.write_cells(done, folder / "cells.csv")
    path = _sweep_groups.plot(done, rows, metric, folder / "sweep.png")
    if as_json:
        print_json({"metric": metric, "settings": rows, "cells": str(cells), "plot": str(path)})
        return
    show(rows, metric)
    typer.echo(f"Plot: {path}. Every cell: {cells}")


def show(rows: list[dict[str, Any]], metric: str) -> None:
    columns = ("settings", "step", "seeds", metric, "standard error", "state")
    shown = lambda row: (f"{row['step']:g}", str(row["seeds"]), number(row["mean"], 4), number(row["stderr"], 2))
    cells = [(row["settings"], *shown(row), row["state"]) for row in rows]
    text_table.show(Table(f"{metric} at the end, best first", columns, cells))
