"""``bilevelax demo``: the paper's two estimators on a problem whose solution is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilevelax.base.text_table import Table, show
from bilevelax.cli._terminal import keep_programs, print_json, say

if TYPE_CHECKING:
    from bilevelax.run.records.result import Result

K = 8
CONTEXTS_A_STEP = {"RT-MLMC": 32, "DL-SGD": 8}  # per step: what each can afford


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the plot and the records.")] = Path("demo"),
    T: Annotated[int, typer.Option("--T", min=1, help="Steps of each method.")] = 1500,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Solve a contextual problem with RT-MLMC and DL-SGD and compare them with the exact solution."""
    mean_steps = 2 * K / (1 - 2.0**-K) - 2
    say(
        "A quadratic problem with infinitely many contexts, whose solution is known.\n"
        f"DL-SGD: 2^{K + 1} - 2 = {2 ** (K + 1) - 2} follower steps for each context.\n"
        f"RT-MLMC: a random number of them, {mean_steps:.0f} on average; the same mean gradient.\n"
    )
    from bilevelax.report.curves import curves

    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be had fails now, not after the runs
    results = compare(T, seed, out)
    path = curves(
        {name: result.history for name, result in results.items()},
        y="distance",
        x=("t", "grad_g", "seconds"),
        path=out / "demo.png",
        labels={
            "distance": "distance to the optimum",
            "t": "outer steps",
            "grad_g": "gradients of the follower's loss",
        },
    )
    if as_json:
        last = {name: {**result.history[-1], "folder": str(out / name.lower())} for name, result in results.items()}
        print_json({"plot": str(path), "methods": last})
        return
    show(comparison(results))
    typer.echo(f"Plot: {path}. To look closer: bilevelax report {out}")


def compare(T: int, seed: int, out: Path) -> dict[str, Result]:
    """Both methods, saved in folders of their names."""
    import jax
    import optax

    from bilevelax import dl_sgd, minibatch, minimize, rt_mlmc
    from bilevelax.applications import quadratic

    keep_programs()
    app = quadratic.make()
    results = {}
    for name, estimator in {"RT-MLMC": rt_mlmc(K), "DL-SGD": dl_sgd(K)}.items():
        say(f"{name}: compiling, then {T} steps")
        results[name] = minimize(
            app.problem,
            minibatch(estimator, CONTEXTS_A_STEP[name]),
            optax.adam(optax.cosine_decay_schedule(2e-2, T)),
            app.x1,
            key=jax.random.key(seed),
            T=T,
            every=50,
            metrics=app.metrics,
        )
        results[name].manifest["config"] = {"method": name, "K": K, "contexts": CONTEXTS_A_STEP[name], "seed": seed}
        results[name].save(out / name.lower())
    return results


def comparison(results: dict[str, Result]) -> Table:
    """Cost, time and accuracy, one row a method."""
    columns = ("method", "contexts", "distance", "F - F*", "follower gradients", "seconds", "compiled in")
    rows = []
    for name, result in results.items():
        last, cost = result.history[-1], result.cost
        reached = f"{cost.xi:,}", f"{last['distance']:.4f}", f"{last['F_gap']:.2e}"
        rows.append((name, *reached, f"{cost.grad_g:,}", f"{result.seconds:.2f}", f"{result.compile_seconds:.1f}"))
    return Table("Distance to the known optimum", columns, rows)
