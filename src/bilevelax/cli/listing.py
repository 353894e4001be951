"""``bilevelax list``: what there is to choose from."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bilevelax import applications, estimators


def list_parts() -> None:
    """Show every application and estimator, with one line each."""
    for title, catalogue in (("Applications", applications.catalogue), ("Estimators", estimators.catalogue)):
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name in catalogue.names():
            table.add_row(f"[bold]{name}[/bold]", catalogue.summary(name))
        Console().print(table, "")
    Console().print("Try: bilevelax run quadratic --estimator rt_mlmc --K 6 --T 2000", highlight=False)
