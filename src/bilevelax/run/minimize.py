"""The SGD framework (Algorithm 2): `minimize`, a run from its first iterate to its result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jax import random
from jax.sharding import Mesh

from bilevelax.base.errors import require_choice, require_integer, require_key
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.problems.validate import as_arrays, check_shapes
from bilevelax.run.records.history import Row
from bilevelax.run.records.result import Result
from bilevelax.run.run import Metrics, Run, devices_of

if TYPE_CHECKING:
    from bilevelax.diagnostics.certify import StopWhen
    from bilevelax.run.auto import Auto
    from bilevelax.run.records.checkpoint import Checkpoint

Callback = Callable[[Row, X], None]

LONG = 60.0  # seconds of steps, from which on a look at the result costs little beside them


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
    recheck: bool | None = None,
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
            at x1, whose table and seconds are in the manifest under ``tuning``, and look again on the way.
        optimizer: any optax transformation; compose with `projected` for constraints on x. One that asks for the
            value of F, as the line search of `optax.lbfgs`, gets it where contexts and outcomes are stored.
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
            the run stands, and certify ``|grad F|^2``; the columns are those of `diagnostics.diagnosis.diagnosis`.
            0: never.
        recheck: measure bias, variance and ``|grad F|^2`` once more at the result, keep them in ``result.recheck``
            and warn where the bias is above 5 %. By default with ``"auto"``, whose programs are compiled already
            and which changes to an estimator without bias on the way where it must, and after runs of a minute.
        mesh: spread the estimates of a `minibatch` over the devices of a mesh with one axis, in one process
            or many (`jax.distributed`): the numbers of one device up to the order of sums, and the same bits
            in every run on that mesh. Each process gives the same arguments; the first writes the records.
        progress: show a progress bar; by default if the output is a terminal or a notebook.

    Raises:
        RunStopped: where x or a metric becomes non-finite, or ``stop_when`` or ``diagnose`` fails; ``.result``
            holds the run up to there.
    """
    require_key("minimize", key)
    require_integer("T", "minimize", T, 1, 2**31 - 1)  # steps are counted in 32 bits
    require_integer("every", "minimize", every, 1)
    require_integer("diagnose", "minimize", diagnose, 0)
    if isinstance(estimator, str):
        require_choice("estimator", "minimize", estimator, ("auto",))
        if jax.process_count() > 1:
            raise ValueError(
                "`estimator` of minimize cannot be 'auto' in a job of many processes: each would measure, and they "
                "might choose differently. Call `tune` in one and pass its estimator to all."
            )
    look_at_the_compiler()
    x1 = as_arrays("x1", "minimize", x1)
    check_shapes(problem, x1)
    optimizer = with_values(optimizer, problem, x1)
    manifest = {"every": every, "key": np.asarray(random.key_data(key)).tolist()}
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(checkpoint.keeper(T, resume)) if checkpoint else None
        bar, auto = progress_bar(stack, T, progress), None
        if isinstance(estimator, str):
            auto = auto_of(bar, problem, x1, key, every, mesh.size if mesh else 1, keeper)
            estimator, manifest["tuning"] = auto.estimator, auto.table
        questions = asked_between_chunks(problem, estimator, key, diagnose, stop_when)
        run = Run(problem, estimator, optimizer, x1, key, T, every, metrics, questions, devices_of(mesh, checkpoint))
        stack.enter_context(run)
        saved = keeper.restore(run) if keeper else None
        bar.note("compiling")
        run.begin(manifest, saved)
        while run.t < T and not run.stopped:
            run.advance(min(run.every - run.t % run.every, T - run.t))
            for callback in callbacks:
                callback(run.history[-1], run.x)
            bar.update(run.t, run.history[-1])
            if auto:
                auto.look(run)
            if keeper:
                keeper.keep(run)
        look_again(run, problem, auto.estimator if auto else estimator, key, recheck, auto)
        if keeper:
            keeper.keep(run, last=True)
    return run.result()


# What follows imports what it needs where it is called: a run that asks for none of it does not wait for it.


def with_values(optimizer: optax.GradientTransformation, problem: Problem, x1: X) -> Any:
    """The optimizer, given F where it asks for it."""
    from bilevelax.run import line_search

    return line_search.with_values(optimizer, problem, x1)


def look_at_the_compiler() -> None:
    """Once per process, on CPU: some versions of XLA compute wrongly there."""
    if jax.default_backend() == "cpu":
        from bilevelax.base.self_test import warn_of_wrong_numbers

        warn_of_wrong_numbers()


def asked_between_chunks(problem: Problem, estimator: Estimator, key: Key, diagnose: int, stop_when: Any) -> list[Any]:
    if not diagnose and stop_when is None:
        return []
    from bilevelax.run.questions import questions

    return questions(problem, estimator, key, diagnose, stop_when)


def auto_of(bar: Any, *where: Any) -> Auto:
    from bilevelax.run.auto import Auto

    bar.note("choosing an estimator")
    return Auto(*where)


def look_again(run: Run, problem: Problem, estimator: Estimator, key: Key, wanted: bool | None, auto: Any) -> None:
    """At the result: the follower where a solve of it failed, the estimator where that is wanted."""
    wanted = (auto is not None or run.seconds > LONG) if wanted is None else wanted
    if wanted or any(row.get("lower_unsolved") for row in run.history):
        from bilevelax.run.watched import look_at_the_result

        look_at_the_result(run, problem, estimator, key, wanted, auto)


class Silent:
    """The progress bar of a run that wants none."""

    def note(self, text: str) -> None: ...

    def update(self, done: int, row: Row) -> None: ...


def progress_bar(stack: contextlib.ExitStack, T: int, progress: bool | None) -> Any:
    if progress is False:
        return Silent()
    from bilevelax.run.records.progress import Progress

    return stack.enter_context(Progress(T, enabled=progress))
