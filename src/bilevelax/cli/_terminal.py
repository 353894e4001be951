"""What commands say while they work: on standard error, in terminals only. Results go to standard output."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer

from bilevelax.run.records.signals import Terminated


def say(text: str) -> None:
    """One line for a person who watches; nothing where the output is piped or logged."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def results(*lines: str) -> None:
    """Results, as they are: what looks like markup or a control code in a column's name stays text."""
    from bilevelax.tables.demands import printable

    for line in lines:
        typer.echo(printable(line))


@contextlib.contextmanager
def busy(text: str) -> Iterator[None]:
    """Show what is being done, and for how long already, where no number of steps is known."""
    if not sys.stderr.isatty():
        yield
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.SpinnerColumn(), progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(text, total=None)
        yield


def keep_programs() -> None:
    """Load what earlier commands compiled, and keep what this one compiles. JAX is imported."""
    from bilevelax.base.cache import switch_on
    from bilevelax.base.program_files import Refused

    try:
        switch_on()
    except Refused as refused:
        if refused.news:
            typer.echo(f"Compiled programs are not kept: {refused}", err=True)


@contextlib.contextmanager
def told_when_stopped() -> Iterator[None]:
    """Ctrl-C and SIGTERM: one line that says where the run is, and the exit code that shells expect."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        typer.echo(str(stop).replace("the same call", "the same command") or "Stopped.", err=True)
        raise


def print_json(value: Any) -> None:
    """The result for programs: one JSON document, and nothing else, on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def complain(text: str) -> None:
    """One line on standard error, red where colours are wanted."""
    line = " ".join(str(text).split())
    typer.secho(f"Error: {line}", fg="red", err=True, color=False if os.environ.get("NO_COLOR") else None)
