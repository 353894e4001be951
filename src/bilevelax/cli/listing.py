"""``bilevelax list``: what there is to choose from."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import Annotated

import typer

from bilevelax import applications, estimators
from bilevelax.base.text_table import Table, show
from bilevelax.cli._terminal import print_json


def listing(as_json: Annotated[bool, typer.Option("--json", help="Print names and lines as JSON.")] = False) -> None:
    """Show every application and estimator, with one line each."""
    catalogues = {"applications": applications.catalogue, "estimators": estimators.catalogue}
    parts = {kind: {name: each.summary(name) for name in each.names()} for kind, each in catalogues.items()}
    if as_json:
        print_json(parts)
        return
    for kind, lines in parts.items():
        table = Table(kind.capitalize(), ("", ""), list(lines.items()))
        show(table, partial(_bold_names, lines))
        typer.echo()
    typer.echo("Try: bilevelax run quadratic --estimator rt_mlmc --K 6 --T 2000")


def _bold_names(names: Container[str], cell: str) -> str:
    return "bold" if cell in names else ""
