"""``bilevelax solve NAME``: an application's answer to a tolerance, certified, without settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bilevelax.cli._options import AsJson, Folder, Name, OfApplication, Restart, Seed, folder_of, resume_of, told_saved
from bilevelax.cli._terminal import keep_programs, print_json, say, told_when_stopped
from bilevelax.cli.settings import parse

if TYPE_CHECKING:
    from pathlib import Path

    from bilevelax.run.records.solved import Solved

Tol = Annotated[float, typer.Option(help="|grad F| to reach, relative to its first value.")]
Atol = Annotated[float | None, typer.Option(help="|grad F| to reach, instead of --tol.")]
Budget = Annotated[float | None, typer.Option("--budget", help="Stop after about so many seconds.")]
Restarts = Annotated[int, typer.Option(min=0, help="So many more runs from other points; the lowest F counts.")]


def solve(
    name: Name,
    tol: Tol = 1e-2,
    atol: Atol = None,
    budget: Budget = None,
    restarts: Restarts = 0,
    seed: Seed = 0,
    app_setting: OfApplication = None,
    out: Folder = None,
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Minimise an application until |grad F| is certified to be small; exits non-zero where it is not.

    No estimator, step size, batch or number of steps. Saved after each stage: after Ctrl-C the same command goes on.

    Example: bilevelax solve wdro_si --tol 1e-3
    """
    from jax import random

    from bilevelax.cli import _builders
    from bilevelax.run.records.checkpoint import Checkpoint
    from bilevelax.run.solve import solve as solve_problem

    keep_programs()
    say(f"Building {name}, then solving to {tol if atol is None else atol:g}")
    made = _builders.build_application(name, parse(app_setting or []))
    folder = folder_of(out, name, "solve", seed)
    with told_when_stopped():
        result = solve_problem(
            made.problem,
            made.x1,
            key=random.key(seed),
            tol=tol,
            atol=atol,
            budget_seconds=budget,
            restarts=restarts,
            checkpoint=None if restarts else Checkpoint(folder),
            resume=resume_of(restart),
        )
    result.manifest["config"] = {"name": name, "estimator": "solve", "tol": tol, "seed": seed}
    result.save(folder)
    tell(name, result, made.metrics(result.x), folder, as_json)
    if not result.certified:
        raise typer.Exit(1)


def tell(name: str, result: Solved, metrics: dict[str, float], folder: Path, as_json: bool) -> None:
    """The answer's quality, its stages, and where it is saved."""
    if as_json:
        print_json({"folder": str(folder), **result.manifest["solve"], "metrics": metrics, "seconds": result.seconds})
        return
    typer.echo(f"{name}: {result}")
    typer.echo("  ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    told_saved(folder)
