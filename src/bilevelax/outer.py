"""The SGD framework (Algorithm 2): a run from its first iterate to its result, chunk by chunk."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax import random
from jax.sharding import Mesh

from bilevelax.checkpoint import Checkpoint, Keeper, Snapshot
from bilevelax.devices import columns_of, local, over_devices, replicate
from bilevelax.diagnostics.along import diagnosis
from bilevelax.diagnostics.certify import StopWhen
from bilevelax.diagnostics.tune import named_candidate, tune
from bilevelax.errors import RunStopped, require_choice, require_integer, require_key
from bilevelax.estimate import Cost, Estimator
from bilevelax.feed import Feeder
from bilevelax.fingerprint import identity
from bilevelax.history import Row, environment, level_counts, load_run, save_run
from bilevelax.problem import Key, Problem, X
from bilevelax.progress import Progress
from bilevelax.steps import Carry, Log, chunk, initial_carry, step_keys
from bilevelax.validate import as_arrays, check_shapes

Metrics = Callable[[X], dict[str, float]]
Callback = Callable[[Row, X], None]

ROLE_STOP, ROLE_TUNE, ROLE_DIAGNOSE = 2**31, 2**31 + 1, 2**31 + 2  # beyond every t: steps are addressed by (key, t)


@dataclasses.dataclass(frozen=True)
class Result:
    """What `minimize` returns."""

    x: X  # last iterate
    x_hat: X  # uniform iterate, the output of Algorithm 2
    x_mean: X  # mean of the iterates
    history: list[Row]
    cost: Cost  # total oracle calls
    seconds: float  # of the steps, without compilation and metrics
    compile_seconds: float
    manifest: dict[str, Any]

    def save(self, folder: Any) -> None:
        """Write history.jsonl, history.csv, manifest.json and arrays.npz; no pickle."""
        arrays = {"x": self.x, "x_hat": self.x_hat, "x_mean": self.x_mean}
        summary = {"cost": self.cost.asdict(), "seconds": self.seconds, "compile_seconds": self.compile_seconds}
        save_run(folder, arrays, self.history, {**self.manifest, "result": summary})

    @staticmethod
    def load(folder: Any, like: X | None = None) -> Result:
        """Read what `save` wrote. ``like`` gives the structure of x where it is not dicts, lists and tuples."""
        arrays, history, manifest = load_run(folder, like)
        summary = manifest.pop("result")
        return Result(
            **arrays,
            history=history,
            cost=Cost(**summary["cost"]),
            seconds=summary["seconds"],
            compile_seconds=summary["compile_seconds"],
            manifest=manifest,
        )


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
        RunStopped: where x or a metric becomes non-finite; ``.result`` holds the run up to there.
    """
    require_key("minimize", key)
    require_integer("T", "minimize", T, 1)
    require_integer("every", "minimize", every, 1)
    require_integer("diagnose", "minimize", diagnose, 0)
    x1 = as_arrays("x1", "minimize", x1)
    check_shapes(problem, x1)
    manifest = {"T": T, "every": every, "key": np.asarray(random.key_data(key)).tolist()}
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(Keeper(checkpoint, T, resume)) if checkpoint else None
        if isinstance(estimator, str):
            require_choice("estimator", "minimize", estimator, ("auto",))
            estimator, manifest["tuning"] = tuned_before(problem, keeper) or tuned_now(problem, x1, key)
        run = Run(problem, estimator, optimizer, key, min(every, T), metrics, stop_when, diagnose, mesh)
        stack.callback(run.close)
        saved = (
            keeper.restore(identity(problem, estimator, optimizer, x1, key, every), run.first(x1)) if keeper else None
        )
        bar = stack.enter_context(Progress(T, enabled=progress))
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


def tuned_now(problem: Problem, x1: X, key: Key) -> tuple[Estimator, dict[str, Any]]:
    tuned = tune(problem, x1, key=random.fold_in(key, ROLE_TUNE))
    return tuned.estimator, tuned.asdict()


def tuned_before(problem: Problem, keeper: Keeper | None) -> tuple[Estimator, dict[str, Any]] | None:
    """What the run that goes on was given: a measurement taken again might choose another."""
    table = keeper.tuning() if keeper else None
    return (named_candidate(problem, table["choice"]), table) if table else None


def feeder_of(problem: Problem, estimator: Estimator, key: Key, every: int, mesh: Mesh | None) -> Feeder | None:
    """Of a problem whose contexts are on disk."""
    if problem.source is None:
        return None
    contexts = estimator.contexts
    if contexts is None:
        raise ValueError(
            "`estimator` of minimize must tell its contexts' keys where they are read from disk: Estimator(..., "
            "contexts=...). Use rt_mlmc, dl_sgd, saa, antithetic_mlmc, maml, imaml or a minibatch of one of them."
        )
    columns = columns_of(mesh) if mesh else None
    return Feeder(problem.source, lambda t: contexts(step_keys(key, t)[0]), every, columns)


class Run:
    """The host's side of a run: where it stands and what it has recorded."""

    def __init__(
        self,
        problem: Problem,
        estimator: Estimator,
        optimizer: optax.GradientTransformation,
        key: Key,
        every: int,
        metrics: Metrics | None,
        stop_when: StopWhen | None = None,
        diagnose: int = 0,
        mesh: Mesh | None = None,
    ) -> None:
        spread, place = over_devices(estimator, mesh) if mesh else estimator, replicate(mesh)
        self.feeder = feeder_of(problem, spread, key, every, mesh)
        inside = place(dataclasses.replace(problem, source=None))  # one program for every store
        self.chunk = partial(chunk, inside, key=place(key), estimator=spread, optimizer=optimizer, every=every)
        self.first = lambda x1: place(initial_carry(problem, estimator, optimizer, x1))
        self.here = local if mesh else lambda tree: tree
        self.every = every
        self.metrics = metrics
        self.ask = partial(stop_when, problem) if stop_when else None
        self.key_stop = random.fold_in(key, ROLE_STOP)
        self.diagnose = diagnose
        self.diagnosis = partial(diagnosis(estimator), problem)
        self.key_diagnose = random.fold_in(key, ROLE_DIAGNOSE)
        self.stopped = False

    def begin(self, x1: X, manifest: dict[str, Any], saved: Snapshot | None = None) -> None:
        self.carry = self.first(x1)
        self.history: list[Row] = []
        self.cost = Cost()
        self.seconds = self.compile_seconds = 0.0
        self.manifest = {**environment(), **manifest}
        if saved:
            self.go_on_from(saved)
        if self.t < manifest["T"]:
            started = time.perf_counter()
            jax.block_until_ready(self.take(self.carry, 0))  # no steps: compiles
            self.compile_seconds += time.perf_counter() - started
        if not saved:
            self.record({})

    def snapshot(self) -> Snapshot:
        totals = {"cost": self.cost.asdict(), "seconds": self.seconds, "compile_seconds": self.compile_seconds}
        return Snapshot(self.carry, self.history, {**totals, "stopped": self.stopped, "manifest": self.manifest})

    def go_on_from(self, saved: Snapshot) -> None:
        T, totals = self.manifest["T"], saved.totals
        self.carry, self.history = saved.carry, saved.history
        if self.t > T:
            raise ValueError(f"`T` of minimize must not be less than the {self.t} steps already saved. Got {T}.")
        self.cost, self.stopped = Cost(**totals["cost"]), totals["stopped"]
        self.seconds, self.compile_seconds = totals["seconds"], totals["compile_seconds"]
        resumed = [*totals["manifest"].get("resumed_at", ()), self.t]
        self.manifest = {**totals["manifest"], "T": T, "resumed_at": resumed}

    @property
    def t(self) -> int:
        return int(self.carry.t)

    @property
    def x(self) -> X:
        """Where the run stands, as an array of this process."""
        return self.here(self.carry.x)

    def advance(self, n: int) -> None:
        """n more steps, a row of history, or `RunStopped`."""
        before = self.carry
        started = time.perf_counter()
        self.carry, log = jax.block_until_ready(self.take(before, n))
        self.seconds += time.perf_counter() - started
        log = jax.tree.map(lambda a: np.asarray(a)[:n], log)
        if not log.finite.all():
            self.stop_at(before, int(np.argmin(log.finite)), log)
        self.cost = self.cost + jax.tree.map(lambda a: int(a.sum(dtype=np.int64)), log.cost)
        means = {name: float(a.mean()) for name, a in log.aux.items() if a.ndim == 1}
        self.record({**means, **level_counts(log.aux)})

    def take(self, carry: Carry, n: int) -> tuple[Carry, Log]:
        """n steps from this carry, with the contexts that they need."""
        return self.chunk(carry=carry, n=n, feed=self.feeder.after(int(carry.t)) if self.feeder else None)

    def close(self) -> None:
        if self.feeder:
            self.feeder.close()

    def stop_at(self, before: Carry, good: int, log: Log) -> None:
        """Step number ``good`` of this chunk spoilt x: go back to the last finite iterate."""
        self.carry, _ = self.take(before, good)  # draws are addressed: the same steps again
        level = f" (level k = {log.aux['level'][good]:g})" if "level" in log.aux else ""
        raise RunStopped(
            f"x became non-finite at t = {self.t + 1}{level}. Usual causes: the outer step or beta0 too large, or "
            "long Neumann products with L_g1 underestimated.",
            self.result(),
        )

    def record(self, values: dict[str, float]) -> None:
        row = {"t": self.t, "seconds": self.seconds, **self.cost.asdict(), **values}
        for name, value in (self.metrics(self.x) if self.metrics else {}).items():
            if np.ndim(value) != 0 or not np.isfinite(float(value)):
                raise RunStopped(
                    f"metric `{name}` must be one finite number. Got {value!r} at t = {self.t}.", self.result()
                )
            row[name] = float(value)
        if self.diagnose and len(self.history) % self.diagnose == 0:
            row |= self.diagnosis(self.x, random.fold_in(self.key_diagnose, self.t))
        if self.ask:
            self.stopped, columns = self.ask(self.x, random.fold_in(self.key_stop, self.t))
            row |= columns
        self.history.append(row)

    def result(self) -> Result:
        c = self.here(self.carry)
        return Result(
            c.x, c.x_hat, c.x_mean, self.history, self.cost, self.seconds, self.compile_seconds, self.manifest
        )
