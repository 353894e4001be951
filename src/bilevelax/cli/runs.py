"""``bilevelax runs``: which runs there are, how far they are and when they will end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bilevelax.cli._terminal import print_json

COLOURS = {"running": "green", "finished": "blue", "failed": "red", "killed": "yellow", "interrupted": "yellow"}


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, sub-folders included.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs as JSON.")] = False,
) -> None:
    """List the runs in a folder: state, step, time spent and time left.

    A run that was killed or interrupted goes on when its command is given again.
    """
    from bilevelax.run_folder import runs_in

    found = runs_in(folder)
    if not found:
        raise ValueError(f"There is no run in {folder}: `bilevelax run NAME` makes one, or name another folder.")
    if as_json:
        print_json([{**each._asdict(), "folder": str(each.folder)} for each in found])
        return
    table = Table(title=f"Runs in {folder}", title_justify="left")
    for column in ("run", "state", "step", "of", "spent", "left"):
        table.add_column(column, justify="left" if column in ("run", "state") else "right", overflow="fold")
    for each in found:
        state = f"[{COLOURS.get(each.state, 'white')}]{each.state}[/]"
        left = "" if each.left is None else duration(each.left)
        name = escape(str(each.folder.relative_to(folder)))
        table.add_row(name, state, f"{each.t:,}", f"{each.T:,}", duration(each.seconds), left)
    Console().print(table)
    for each in found:
        if each.state == "failed":
            Console().print(f"{each.folder.relative_to(folder)}: {each.message}", highlight=False, markup=False)


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
