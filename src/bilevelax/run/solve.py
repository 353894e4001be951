"""`solve`: an answer to a tolerance, without a step size, a batch or a number of steps.

Retrospective approximation (Newton, Bollapragada, Pasupathy, Yip, Math. of OR 2025): minimise on a fixed sample until
its own error is below what the sample leaves uncertain, take a larger sample, go on from there. The first evaluation
on a new sample is on draws that x does not depend on: it certifies.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from bilevelax.base.errors import require_integer, require_key, require_positive, require_share
from bilevelax.core.problem import Key, Problem, X
from bilevelax.problems.validate import as_arrays, check_shapes
from bilevelax.run.minimize import Callback, look_at_the_compiler
from bilevelax.run.records.history import Row
from bilevelax.run.records.progress import Progress
from bilevelax.run.records.solved import Solved
from bilevelax.run.solve_checks import require_callbacks, require_checkpoint, require_projection
from bilevelax.run.solving import Interrupted, Solving, Wanted

if TYPE_CHECKING:
    from bilevelax.run.records.checkpoint import Checkpoint

STAGES = 100  # more than any solve has: what a progress bar and a folder of checkpoints count to
ROLE_RESTART = 2**31


def solve(
    problem: Problem,
    x1: X,
    *,
    key: Key,
    tol: float = 1e-2,
    atol: float | None = None,
    level: float = 0.95,
    budget_seconds: float | None = None,
    constraint: Callable[[X], X] | None = None,
    restarts: int = 0,
    callbacks: Iterable[Callback] = (),
    checkpoint: Checkpoint | None = None,
    resume: str = "auto",
    mesh: Mesh | None = None,
    progress: bool | None = None,
) -> Solved:
    """Minimise F from x1 until ``|grad F|`` is certified to be below ``tol`` times its first value. No other setting.

    Samples grow by themselves; on each, F is lowered by L-BFGS until the sample's own error is reached. Where all
    contexts and all outcomes are stored and few, nothing is random.

    Args:
        problem: what to minimise; smooth, with a strongly convex lower level.
        x1: first iterate, a pytree of floating-point arrays.
        key: a JAX random key; equal keys give equal answers.
        tol: of ``|grad F|``, relative to that at x1.
        atol: absolute, instead.
        level: probability that the certificate holds, over all looks of the run.
        budget_seconds: stop after about that time, whatever was reached; by default where 262,144 contexts are not
            enough for one look.
        constraint: ``x -> x``, the projection on a convex set, e.g. one of `optax.projections`. The measure is then
            ``|x - P(x - grad F)|``.
        restarts: so many more runs, from points as far from x1 as the first answer is; the lowest F is returned.
        callbacks: called as ``callback(row, x)`` after each iteration.
        checkpoint: saves the run after each stage, ``Checkpoint(folder)``. Ctrl-C and SIGTERM then stop at the last
            whole stage, and the same call goes on from there to the same answer. tol may change.
        resume: ``"auto"``, or ``"restart"`` to start over and put the old run aside.
        mesh: share the contexts of a sample between the devices of a mesh with one axis, in one process.
        progress: show a line with stage, ``|grad F|``, its interval and the time left; by default if the output is a
            terminal or a notebook.

    Returns:
        `Solved`: x with its ``certificate``, ``F`` with its interval, ``stages``, ``reason`` and ``why``. Look at
        ``certified``: it is false where the answer was not reached, and ``why`` tells what to do.

    Raises:
        RunStopped: where F or its gradient is not finite at x1 or at an answer.
    """
    require_key("solve", key)
    require_positive("tol", "solve", tol)
    require_positive("atol", "solve", atol, optional=True)
    require_share("level", "solve", level)
    require_positive("budget_seconds", "solve", budget_seconds, optional=True)
    require_integer("restarts", "solve", restarts, 0)
    if restarts and checkpoint:
        raise ValueError(
            "`restarts` and `checkpoint` of solve exclude each other. Save each run in a folder of its own."
        )
    look_at_the_compiler()
    x1 = as_arrays("x1", "solve", x1)
    check_shapes(problem, x1)
    if constraint is not None:
        require_projection(constraint, x1)
    callbacks = require_callbacks(callbacks)
    require_checkpoint(checkpoint)
    shares = restarts + 1  # of the budget, and of what may go wrong
    wanted = Wanted(tol, atol, 1 - (1 - level) / shares, budget_seconds and budget_seconds / shares, constraint)
    with Progress(100, progress, "solve", counts=False) as bar:
        told = teller(bar, callbacks)
        bar.note("compiling")
        first = Solving(problem, x1, key, wanted, told, place_on(mesh))
        result = run(first, checkpoint, resume)
        others = (again(first, r, told) for r in range(restarts))
        return min([result, *others], key=lambda found: (not found.certified, found.F.mean))


def teller(bar: Progress, callbacks: Sequence[Callback]) -> Callback:
    """Shows a row, and how much of the way from the first gradient to the goal is done, then passes it on."""
    first: list[float] = []

    def told(row: Row, x: X) -> None:
        first.append(row["grad"])
        way = math.log(max(first[0] / row["goal"], 1 + 1e-9)) if row["goal"] else 1.0
        done = math.log(max(first[0] / max(row["grad"], 1e-300), 1.0)) / way
        bar.told(round(100 * min(done, 0.99)), words(row))
        for callback in callbacks:
            callback(row, x)

    return told


def words(row: Row) -> list[str]:
    """Of the progress line: on 80 columns there is room for the interval."""
    interval = f"[{row['low']:.2g}, {row['high']:.2g}]"
    return [f"stage {row['stage']}", f"|grad F| {row['grad']:.2g}", interval, f"goal {row['goal']:.2g}"]


def run(solving: Solving, checkpoint: Checkpoint | None = None, resume: str = "auto") -> Solved:
    """Stage after stage until there is a reason to stop, saved after each where that is asked for."""
    with contextlib.ExitStack() as stack:
        saves: Any = None
        if checkpoint:
            from bilevelax.run.solve_saves import Saved

            saves = stack.enter_context(Saved(solving, checkpoint, resume, STAGES))
        while solving.reason is None:
            try:
                solving.advance()
            except Interrupted:
                saves.stop()
            if saves and solving.reason is None:
                saves.keep()
        if saves is None or not saves.finished:
            solving.finish()
        if saves:
            saves.keep(last=True)
    return solving.result()


def again(first: Solving, r: int, told: Callback) -> Solved:
    """A run from a random point about as far from x1 as the first answer, to the same goal."""
    key = random.fold_in(first.key, ROLE_RESTART + r)
    flat, unravel = ravel_pytree(first.x1)
    scale = float(np.linalg.norm(first.x - first.begin)) / max(flat.size, 1) ** 0.5
    x1 = unravel(flat + scale * random.normal(key, flat.shape, flat.dtype))
    x1 = first.wanted.constraint(x1) if first.wanted.constraint else x1
    wanted = first.wanted._replace(atol=first.goal)
    return run(Solving(first.problem, x1, random.fold_in(key, 1), wanted, told, first.place))


def place_on(mesh: Mesh | None) -> Any:
    """How the lanes of a chunk are laid on the devices of a mesh; None for one device."""
    if mesh is None:
        return None
    import jax

    if jax.process_count() > 1:
        raise ValueError("`mesh` of solve must be of one process. Use `minimize`, which takes many.")
    from bilevelax.run.devices import automatic, axis_of, lanes_over

    axis_of(mesh, "solve")
    return lanes_over(automatic(mesh))
