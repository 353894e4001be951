"""Options that several commands take: each is worded once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="An application of `bilevelax list`.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.")]
OfApplication = Annotated[list[str] | None, typer.Option("--app", "-a", help="name=value for the application.")]
Folder = Annotated[Path | None, typer.Option(help="Folder of the records; by default runs/NAME-METHOD-SEED.")]
Restart = Annotated[bool, typer.Option("--restart", help="Start over; the old run is put aside.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def folder_of(out: Path | None, name: str, method: str, seed: int) -> Path:
    """Where the records of a run go."""
    return out or Path("runs") / f"{name}-{method}-{seed}"


def resume_of(restart: bool) -> str:
    return "restart" if restart else "auto"


def told_saved(folder: Path) -> None:
    typer.echo(f"Saved in {folder}. To see it: bilevelax report {folder}")
