"""``bilevelax run NAME``: minimise an application and save the records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevelax.base import text_table
from bilevelax.base.text_table import Table, number
from bilevelax.cli import solve as solving
from bilevelax.cli._options import AsJson, Folder, Name, OfApplication, Restart, Seed, folder_of, resume_of, told_saved
from bilevelax.cli._terminal import keep_programs, print_json, say, told_when_stopped
from bilevelax.cli.settings import parse

if TYPE_CHECKING:
    from bilevelax.run.records.result import Result

METHOD = "How gradients are estimated; auto chooses by measurement. (default: rt_mlmc, or as the application says)"
MethodOption = Annotated[str | None, typer.Option(help=METHOD)]
Depth = Annotated[int | None, typer.Option("--K", help="Deepest level (rt_mlmc) or number of epochs (dl_sgd).")]
Terms = Annotated[int | None, typer.Option("--N", help="Terms of the Neumann series; by default from the problem.")]
Steps = Annotated[int | None, typer.Option("--T", help="Number of steps (default: 2000).")]
Contexts = Annotated[int | None, typer.Option(help="Contexts averaged in each step (default: 1).")]
EVENLY = "Of finitely many, take them evenly: each once if --contexts is their number."
Evenly = Annotated[bool, typer.Option("--spread", help=EVENLY)]
Optimizer = Annotated[str, typer.Option(help="adam or sgd.")]
StepSize = Annotated[float | None, typer.Option(help="Step size; with --t0 its scale (default: 0.01).")]
Schedule = Annotated[int | None, typer.Option(help="Use the paper's schedule: 1/sqrt(t) up to t0, then 1/t.")]
Every = Annotated[int, typer.Option(help="Steps between two rows of the history.")]
OfEstimator = Annotated[list[str] | None, typer.Option("--est", "-e", help="name=value for the estimator.")]
DEVICES = "Devices that share the contexts of a step; on CPU they are made."
DevicesOption = Annotated[int, typer.Option(min=1, help=DEVICES)]
DISTRIBUTED = "One of many processes: all devices of a SLURM or Kubernetes job."
Distributed = Annotated[bool, typer.Option("--distributed", help=DISTRIBUTED)]
SOLVE = "Without estimator, step size and number of steps: what `bilevelax solve` does."
Solve = Annotated[bool, typer.Option("--solve", help=SOLVE)]
Budget = Annotated[float, typer.Option(min=1, help="Seconds of --solve; `bilevelax solve` has no limit by default.")]


def run(
    name: Name,
    estimator: MethodOption = None,
    K: Depth = None,
    N: Terms = None,
    T: Steps = None,
    contexts: Contexts = None,
    spread: Evenly = False,
    optimizer: Optimizer = "adam",
    step: StepSize = None,
    t0: Schedule = None,
    seed: Seed = 0,
    every: Every = 100,
    app_setting: OfApplication = None,
    est_setting: OfEstimator = None,
    out: Folder = None,
    devices: DevicesOption = 1,
    distributed: Distributed = False,
    restart: Restart = False,
    solve: Solve = False,
    budget: Budget = 90,
    as_json: AsJson = False,
) -> None:
    """Minimise an application and save history, arrays and manifest.

    The run is saved once a minute, on Ctrl-C and on SIGTERM: the same command goes on where it stopped.

    Example: bilevelax run quadratic --estimator rt_mlmc --K 6 --T 2000 -a d_x=10
    """
    if solve:
        others = {"estimator": estimator, "K": K, "N": N, "T": T, "contexts": contexts, "step": step, "t0": t0}
        refuse_beside_solve(**others, est=est_setting, spread=spread, distributed=distributed, devices=devices > 1)
        settings: dict[str, Any] = {"app_setting": app_setting, "out": out, "restart": restart, "as_json": as_json}
        solving.solve(name, budget=budget, seed=seed, **settings)
        return
    estimator, T, contexts, step = way_of(name, estimator=estimator, T=T, contexts=contexts, step=step)
    config = {name: str(value) if isinstance(value, Path) else value for name, value in locals().items()}
    del config["as_json"], config["budget"]
    import jax

    from bilevelax.cli import _builders
    from bilevelax.run.minimize import minimize
    from bilevelax.run.records.checkpoint import Checkpoint

    mesh = _builders.mesh_of(devices, distributed)  # before JAX counts its devices
    keep_programs()
    say(f"Building {name}, then {T} steps with {estimator}")
    made = _builders.build_application(name, parse(app_setting or []))
    how = _builders.estimator_or_auto(estimator, K, N, contexts, est_setting or [], spread)
    rule = _builders.build_optimizer(optimizer, step, t0)
    folder = folder_of(out, name, estimator, seed)
    steps: dict[str, Any] = {"T": T, "every": every, "metrics": made.metrics, "mesh": mesh}
    saved: dict[str, Any] = {"checkpoint": Checkpoint(folder), "resume": resume_of(restart)}
    with told_when_stopped():
        result = minimize(made.problem, how, rule, made.x1, key=jax.random.key(seed), **steps, **saved)
    if jax.process_index() > 0:
        return  # the first process writes and speaks
    result.manifest["config"] = config
    result.save(folder)
    tell(f"{name} by", estimator, result, folder, as_json)


def refuse_beside_solve(**options: Any) -> None:
    """What --solve would not read must not be given."""
    given = [f"--{name}" for name, value in options.items() if value not in (None, False, [])]
    if given:
        raise ValueError(
            f"`--solve` chooses for itself and does not read {', '.join(given)}. Leave that out, or leave out --solve."
        )


def way_of(name: str, **given: Any) -> tuple[str, int, int, float]:
    """Of what is not given: where no estimator is named, as the application says in ``RUN`` of its module."""
    from bilevelax.applications import catalogue

    usual: dict[str, Any] = {"estimator": "rt_mlmc", "T": 2000, "contexts": 1, "step": 1e-2}
    if given["estimator"] is None:
        usual |= getattr(catalogue.module(name), "RUN", {})
    usual |= {key: value for key, value in given.items() if value is not None}
    return usual["estimator"], usual["T"], usual["contexts"], usual["step"]


def tell(title: str, estimator: str, result: Result, folder: Path, as_json: bool) -> None:
    """Where the run ended and where it is saved."""
    if as_json:
        totals = {"cost": result.cost.asdict(), "compile_seconds": result.compile_seconds}
        print_json({"folder": str(folder), "first": result.history[0], "last": result.history[-1], **totals})
        return
    if resumed := result.manifest.get("resumed_at"):
        typer.echo(f"Went on from t = {resumed[-1]}, saved by an earlier run.")
    tuning = result.manifest.get("tuning")
    show(f"{title} {tuning['choice'] if tuning else estimator}", result)
    told_saved(folder)


def show(title: str, result: Result) -> None:
    """First and last row of the history, side by side."""
    from bilevelax.run.records.history import is_level_count

    first, last = result.history[0], result.history[-1] | {"compile_seconds": result.compile_seconds}
    names = [name for name in last if not is_level_count(name)]
    rows = [(name, number(first.get(name), 4), number(last[name], 4)) for name in names]
    text_table.show(Table(title, ("", "first", "last"), rows))
