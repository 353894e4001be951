"""``bilevelax run NAME``: minimise an application and save the records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from bilevelax.cli._terminal import print_json, say, told_when_stopped
from bilevelax.cli.settings import parse

if TYPE_CHECKING:
    from bilevelax.result import Result


def run(
    name: Annotated[str, typer.Argument(help="An application of `bilevelax list`.")],
    estimator: Annotated[
        str, typer.Option(help="How gradients are estimated; auto chooses by measurement.")
    ] = "rt_mlmc",
    K: Annotated[int | None, typer.Option("--K", help="Deepest level (rt_mlmc) or number of epochs (dl_sgd).")] = None,
    N: Annotated[
        int | None, typer.Option("--N", help="Terms of the Neumann series; by default from the problem.")
    ] = None,
    T: Annotated[int, typer.Option("--T", help="Number of steps.")] = 2000,
    contexts: Annotated[int, typer.Option(help="Contexts averaged in each step.")] = 1,
    spread: Annotated[
        bool,
        typer.Option("--spread", help="Of finitely many, take them evenly: each once if --contexts is their number."),
    ] = False,
    optimizer: Annotated[str, typer.Option(help="adam or sgd.")] = "adam",
    step: Annotated[float, typer.Option(help="Step size; with --t0 its scale.")] = 1e-2,
    t0: Annotated[int | None, typer.Option(help="Use the paper's schedule: 1/sqrt(t) up to t0, then 1/t.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    every: Annotated[int, typer.Option(help="Steps between two rows of the history.")] = 100,
    app_setting: Annotated[
        list[str] | None, typer.Option("--app", "-a", help="name=value for the application.")
    ] = None,
    est_setting: Annotated[list[str] | None, typer.Option("--est", "-e", help="name=value for the estimator.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the records; by default runs/NAME-ESTIMATOR-SEED.")
    ] = None,
    devices: Annotated[
        int, typer.Option(min=1, help="Devices that share the contexts of a step; on CPU they are made.")
    ] = 1,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="One of many processes: all devices of a SLURM or Kubernetes job.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start over; the old run is put aside.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Minimise an application and save history, arrays and manifest.

    The run is saved once a minute, on Ctrl-C and on SIGTERM: the same command goes on where it stopped.

    Example: bilevelax run quadratic --estimator rt_mlmc --K 6 --T 2000 -a d_x=10
    """
    config = {name: str(value) if isinstance(value, Path) else value for name, value in locals().items()}
    del config["as_json"]
    import jax

    from bilevelax.checkpoint import Checkpoint
    from bilevelax.cli._build import (
        build_application,
        build_estimator,
        build_optimizer,
        chosen_by_measurement,
        mesh_of,
    )
    from bilevelax.outer import minimize

    mesh = mesh_of(devices, distributed)  # before JAX counts its devices
    say(f"Building {name}, then {T} steps with {estimator}")
    made = build_application(name, parse(app_setting or []))
    how = (
        chosen_by_measurement(K, N, contexts, est_setting or [], spread)
        if estimator == "auto"
        else build_estimator(estimator, K, N, contexts, parse(est_setting or []), spread)
    )
    folder = out or Path("runs") / f"{name}-{estimator}-{seed}"
    with told_when_stopped():
        result = minimize(
            made.problem,
            how,
            build_optimizer(optimizer, step, t0),
            made.x1,
            key=jax.random.key(seed),
            T=T,
            every=every,
            metrics=made.metrics,
            checkpoint=Checkpoint(folder),
            resume="restart" if restart else "auto",
            mesh=mesh,
        )
    if jax.process_index() > 0:
        return  # the first process writes and speaks
    result.manifest["config"] = config
    result.save(folder)
    if as_json:
        totals = {"cost": result.cost.asdict(), "compile_seconds": result.compile_seconds}
        print_json({"folder": str(folder), "first": result.history[0], "last": result.history[-1], **totals})
        return
    if resumed := result.manifest.get("resumed_at"):
        Console().print(f"Went on from t = {resumed[-1]}, saved by an earlier run.", highlight=False)
    tuning = result.manifest.get("tuning")
    show(f"{name} by {tuning['choice'] if tuning else estimator}", result)
    Console().print(f"Saved in {folder}. To see it: bilevelax report {folder}", highlight=False, soft_wrap=True)


def show(title: str, result: Result) -> None:
    """First and last row of the history, side by side."""
    from bilevelax.history import is_level_count

    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("first", justify="right")
    table.add_column("last", justify="right")
    first, last = result.history[0], result.history[-1]
    for name in (name for name in last if not is_level_count(name)):
        table.add_row(name, _number(first.get(name)), _number(last[name]))
    table.add_row("compile_seconds", "", _number(result.compile_seconds))
    Console().print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,d}" if isinstance(value, int) else f"{value:.4g}"
