"""The SGD framework (Algorithm 2): `minimize`, a run from its first iterate to its result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import optax
from jax import random
from jax.sharding import Mesh

from bilevelax.checkpoint import Checkpoint, Keeper
from bilevelax.diagnostics.certify import StopWhen
from bilevelax.diagnostics.tune import named_candidate, tune
from bilevelax.errors import require_choice, require_integer, require_key
from bilevelax.estimate import Estimator
from bilevelax.fingerprint import identity
from bilevelax.history import Row
from bilevelax.problem import Key, Problem, X
from bilevelax.progress import Progress
from bilevelax.result import Result
from bilevelax.run import ROLE_TUNE, Metrics, Run
from bilevelax.validate import as_arrays, check_shapes

Callback = Callable[[Row, X], None]


def minimize(
    problem: Problem,
    estimator: Estimator | str,
    optimizer: optax.GradientTransformation,
    x1: X,
    *,
    key: Key,
    T: int,
    every: int = 100,
    metrics: Metrics | None = None,
    callbacks: Iterable[Callback] = (),
    checkpoint: Checkpoint | None = None,
    resume: str = "auto",
    stop_when: StopWhen | None = None,
    diagnose: int = 0,
    mesh: Mesh | None = None,
    progress: bool | None = None,
) -> Result:
    """Minimise F from x1 by T steps of an optax optimizer on estimated gradients (Algorithm 2).

    Steps run compiled, ``every`` at a time. Between these chunks the host checks that x is
    finite, evaluates ``metrics(x) -> dict of floats``, appends a row to the history and calls
    each ``callback(row, x)``.

    Args:
        problem: what to minimise.
        estimator: how gradients are estimated, e.g. ``rt_mlmc(K=8)``; ``"auto"`` lets `tune` choose
            at x1, whose table and seconds are in the manifest under ``tuning``.
        optimizer: any optax transformation; compose with `projected` for constraints on x.
        x1: first iterate, a pytree of floating-point arrays.
        key: a JAX random key; equal keys give equal runs.
        T: number of steps.
        every: steps per chunk.
        metrics: evaluated at x1 and after each chunk; its values become columns of the history.
        callbacks: called after each chunk.
        checkpoint: saves the run in a folder, ``Checkpoint(folder)``. Ctrl-C and SIGTERM then save and stop.
        resume: ``"auto"`` goes on from the folder's last good checkpoint, with the bits of a run that was
            never stopped; chunks after that checkpoint call their callbacks again. T may grow. Another
            problem, setting or version is refused. ``"restart"`` starts over and puts the old run aside.
        stop_when: ``(problem, x, key) -> (stop?, dict of columns)``, e.g. ``certified(eps)``; asked at x1
            and after each chunk, where its values become columns of the history.
        diagnose: every that many chunks, and at x1, measure the estimator's bias, variance and time where
            the run stands, and certify ``|grad F|^2``; the columns are those of `diagnostics.along.diagnosis`.
            0: never.
        mesh: spread the estimates of a `minibatch` over the devices of a mesh with one axis, in one process
            or many (`jax.distributed`): the numbers of one device up to the order of sums, and the same bits
            in every run on that mesh. Each process gives the same arguments; the first writes the records.
        progress: show a progress bar; by default if the output is a terminal or a notebook.

    Raises:
        RunStopped: where x or a metric becomes non-finite, or ``stop_when`` or ``diagnose`` fails; ``.result``
            holds the run up to there.
    """
    require_key("minimize", key)
    require_integer("T", "minimize", T, 1)
    require_integer("every", "minimize", every, 1)
    require_integer("diagnose", "minimize", diagnose, 0)
    if isinstance(estimator, str):
        require_choice("estimator", "minimize", estimator, ("auto",))
        if jax.process_count() > 1:
            raise ValueError(
                "`estimator` of minimize cannot be 'auto' in a job of many processes: each would measure, and they "
                "might choose differently. Call `tune` in one and pass its estimator to all."
            )
    x1 = as_arrays("x1", "minimize", x1)
    check_shapes(problem, x1)
    manifest = {"T": T, "every": every, "key": np.asarray(random.key_data(key)).tolist()}
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(Keeper(checkpoint, T, resume)) if checkpoint else None
        bar = stack.enter_context(Progress(T, enabled=progress))
        if isinstance(estimator, str):
            bar.note("choosing an estimator")
            devices = mesh.size if mesh else 1
            estimator, manifest["tuning"] = tuned_before(problem, keeper) or tuned_now(problem, x1, key, devices)
        run = Run(problem, estimator, optimizer, key, min(every, T), metrics, stop_when, diagnose, mesh)
        stack.callback(run.close)
        saved = (
            keeper.restore(identity(problem, estimator, optimizer, x1, key, every), run.first(x1)) if keeper else None
        )
        bar.note("compiling")
        run.begin(x1, manifest, saved)
        while run.t < T and not run.stopped:
            run.advance(min(run.every - run.t % run.every, T - run.t))
            for callback in callbacks:
                callback(run.history[-1], run.x)
            bar.update(run.t, run.history[-1])
            if keeper:
                keeper.keep(run)
        if keeper:
            keeper.keep(run, last=True)
    return run.result()


def tuned_now(problem: Problem, x1: X, key: Key, devices: int) -> tuple[Estimator, dict[str, Any]]:
    tuned = tune(problem, x1, key=random.fold_in(key, ROLE_TUNE), devices=devices)
    return tuned.estimator, {**tuned.asdict(), "devices": devices}


def tuned_before(problem: Problem, keeper: Keeper | None) -> tuple[Estimator, dict[str, Any]] | None:
    """What the run that goes on was given: a measurement taken again might choose another."""
    table = keeper.tuning() if keeper else None
    return (named_candidate(problem, table["choice"], table.get("devices", 1)), table) if table else None
