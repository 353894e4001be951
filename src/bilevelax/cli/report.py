"""``bilevelax report RUN ...``: one HTML page that compares runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Comparison of runs",
) -> None:
    """Compare runs in one HTML file that needs no network: curves, cost, levels, settings, environment.

    Runs that differ only in their seed become one line with a band.

    Example: bilevelax report runs/quadratic-rt_mlmc-0 runs/quadratic-dl_sgd-0 --out report.html
    """
    from bilevelax.report import report as write

    typer.echo(f"Report: {write(runs, out, title=title)}")
