"""``bilevelax report RUN ...``: one HTML page that compares runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bilevelax.cli._terminal import busy, print_json


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Comparison of runs",
    as_json: Annotated[bool, typer.Option("--json", help="Print where the page is as JSON.")] = False,
) -> None:
    """Compare runs in one HTML file that needs no network: curves, cost, levels, settings, environment.

    Runs that differ only in their seed become one line with a band.

    Example: bilevelax report runs/quadratic-rt_mlmc-0 runs/quadratic-dl_sgd-0 --out report.html
    """
    from bilevelax.report import report as write

    with busy(f"Reading runs for {out}"):
        path = write(runs, out, title=title)
    if as_json:
        print_json({"report": str(path)})
    else:
        typer.echo(f"Report: {path}")
