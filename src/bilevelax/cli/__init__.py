"""The command line: ``bilevelax --help``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bilevelax._version import __version__
from bilevelax.cli import check, demo, features, listing, newsvendor, paper, report, run, runs, sweep

app = typer.Typer(
    help="Contextual stochastic bilevel optimization. Start with `bilevelax demo`, then `bilevelax list`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("demo")(demo.demo)
app.command("list")(listing.list_parts)
app.command("run")(run.run)
app.command("runs")(runs.runs)
app.command("sweep")(sweep.sweep)
app.command("check")(check.check)
app.command("features")(features.features)
app.command("report")(report.report)
app.add_typer(newsvendor.app, name="newsvendor")
app.command("paper")(paper.paper)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bilevelax {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Contextual stochastic bilevel optimization. Start with `bilevelax demo`, then `bilevelax list`."""


def main() -> None:
    """Errors of use are one sentence on standard error; ``--debug`` shows where they came from."""
    try:
        app()
    except (ValueError, AssertionError, OSError, ImportError) as error:
        if "--debug" in sys.argv:
            raise
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(1)
