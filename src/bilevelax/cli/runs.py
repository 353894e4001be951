"""``bilevelax runs``: which runs there are, how far they are and when they will end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilevelax.base.text_table import Table, show
from bilevelax.cli._terminal import print_json

if TYPE_CHECKING:
    from bilevelax.run.records.run_folder import Status

STATE_COLOURS = {"running": "green", "finished": "blue", "failed": "red", "killed": "yellow", "interrupted": "yellow"}


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, sub-folders included.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs as JSON.")] = False,
) -> None:
    """List the runs in a folder: state, step, time spent and time left, estimator and optimizer with their settings.

    A run that was killed or interrupted goes on when its command is given again.
    """
    from bilevelax.run.records.run_folder import runs_in

    found = runs_in(folder)
    if not found:
        raise ValueError(f"There is no run in {folder}: `bilevelax run NAME` makes one, or name another folder.")
    if as_json:
        print_json([{**each._asdict(), "folder": str(each.folder)} for each in found])
        return
    names = [str(each.folder.relative_to(folder)) for each in found]
    rows = [(name, each.state, *times(each)) for name, each in zip(names, found, strict=True)]
    table = Table(f"Runs in {folder}", ("run", "state", "step", "of", "spent", "left"), rows)
    show(table, lambda cell: STATE_COLOURS.get(cell, ""))
    for name, each in zip(names, found, strict=True):
        if each.about:
            typer.echo(f"{name}: {each.about['estimator']} by {each.about['optimizer']}, every={each.about['every']}")
        if each.state == "failed":
            typer.echo(f"{name}: {each.message}")


def times(each: Status) -> tuple[str, ...]:
    """Steps done and asked for, time spent and left."""
    left = "" if each.left is None else duration(each.left)
    return f"{each.t:,}", f"{each.T:,}", duration(each.seconds), left


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
