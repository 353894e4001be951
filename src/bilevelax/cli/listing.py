"""``bilevelax list``: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bilevelax import applications, estimators
from bilevelax.cli._terminal import print_json


def listing(as_json: Annotated[bool, typer.Option("--json", help="Print names and lines as JSON.")] = False) -> None:
    """Show every application and estimator, with one line each."""
    catalogues = {"applications": applications.catalogue, "estimators": estimators.catalogue}
    parts = {kind: {name: each.summary(name) for name in each.names()} for kind, each in catalogues.items()}
    if as_json:
        print_json(parts)
        return
    for kind, lines in parts.items():
        table = Table(title=kind.capitalize(), title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, line in lines.items():
            table.add_row(f"[bold]{name}[/bold]", line)
        Console().print(table, "")
    Console().print("Try: bilevelax run quadratic --estimator rt_mlmc --K 6 --T 2000", highlight=False)
