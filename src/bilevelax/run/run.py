"""The host's side of a run: chunk after chunk, what is recorded of them, and when they must stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax
from jax import random
from jax.sharding import Mesh

from bilevelax.base.compiling import WAYS, program
from bilevelax.base.errors import RunStopped
from bilevelax.core.estimate import Cost, Estimator
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.run.records.history import Row, cost_columns, environment, level_counts
from bilevelax.run.records.result import Result, Snapshot
from bilevelax.run.steps import Carry, Log, chunk, initial_carry, step_keys

if TYPE_CHECKING:
    from bilevelax.problems.feed import Feeder
    from bilevelax.run.records.fingerprint import Identity

Metrics = Callable[[X], dict[str, float]]
# as `how_to_compile` tells
SETTINGS = {"static_argnames": ("estimator", "optimizer", "every")}
CHUNKS = {how: program(how, **SETTINGS)(chunk.__wrapped__) for how in WAYS}


class Question(NamedTuple):
    """What is asked between chunks, where the run stands: shall it stop, and which columns join the row?"""

    name: str  # the argument of `minimize` that it came from
    ask: Callable[[X, Key], tuple[Any, dict[str, Any]]]
    key: Key
    chunks: int = 1  # asked at x1 and every that many chunks


class Devices(NamedTuple):
    """Where a run computes: how its estimator is spread, and how arrays get there and back."""

    spread: Callable[[Estimator], Estimator]
    put: Callable[[PyTree], PyTree]
    here: Callable[[PyTree], PyTree]
    columns: Any = None  # of the contexts read from disk, for each process
    ends: bool = False  # after T steps: a run that was saved may go on with another T


def as_it_is(tree: PyTree) -> PyTree:
    return tree


ONE_DEVICE = Devices(as_it_is, as_it_is, as_it_is)


def devices_of(mesh: Mesh | None, checkpoint: Any) -> Devices:
    if mesh is None:
        return ONE_DEVICE._replace(ends=checkpoint is None)
    from bilevelax.run.devices import automatic, columns_of, local, over_devices, replicate

    mesh = automatic(mesh)
    return Devices(lambda estimator: over_devices(estimator, mesh), replicate(mesh), local, columns_of(mesh))


class Run:
    """The host's side of a run of T steps: where it stands and what it has recorded."""

    def __init__(
        self,
        problem: Problem,
        estimator: Estimator,
        optimizer: optax.GradientTransformation,
        x1: X,
        key: Key,
        T: int,
        every: int,
        metrics: Metrics | None = None,
        questions: Sequence[Question] = (),
        devices: Devices = ONE_DEVICE,
    ) -> None:
        from bilevelax.problems.little import how_to_compile

        self.made_of = (problem, estimator, optimizer, x1, key, every)
        self.T, self.every, self.metrics, self.questions = T, min(every, T), metrics, questions
        self.here, self.spread = devices.here, devices.spread
        spread, put = devices.spread(estimator), devices.put
        self.feeder: Feeder | None = None
        if problem.source is not None:
            from bilevelax.problems.feed import feeder_of

            self.feeder = feeder_of(problem.source, spread, lambda t: step_keys(key, t)[0], self.every, devices.columns)
        inside = put(problem.replace(source=None))  # one program for every store
        steps = CHUNKS[how_to_compile(problem, estimator, x1, T if devices.ends else None)]
        self.chunk = partial(steps, inside, key=put(key), estimator=spread, optimizer=optimizer, every=self.every)
        self.carry: Carry = put(initial_carry(problem, estimator, optimizer, x1))
        self.history: list[Row] = []
        self.cost = Cost()
        self.seconds = self.compile_seconds = 0.0
        self.stopped = False

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.feeder:
            self.feeder.close()

    def identity(self) -> Identity:
        """What a checkpoint must agree with, to go on from it."""
        from bilevelax.run.records.fingerprint import identity

        return identity(*self.made_of)

    def begin(self, manifest: dict[str, Any], saved: Snapshot | None = None) -> None:
        """At x1, or where it was saved: compiles, and records the first row."""
        self.manifest = {**environment(), "T": self.T, **manifest}
        if saved:
            self.go_on_from(saved)
        if self.t < self.T:
            self.compile()
        if not self.history:  # a new run, or one whose history was damaged
            self.record({})

    def compile(self) -> None:
        started = time.perf_counter()
        jax.block_until_ready(self.take(self.carry, 0))  # no steps
        self.compile_seconds += time.perf_counter() - started

    def change(self, estimator: Estimator) -> None:
        """From here on by another estimator; both keep no state."""
        problem, _, *others = self.made_of
        self.made_of = (problem, estimator, *others)
        self.chunk = partial(self.chunk, estimator=self.spread(estimator))
        self.compile()

    def snapshot(self) -> Snapshot:
        totals = {"cost": self.cost.asdict(), "seconds": self.seconds, "compile_seconds": self.compile_seconds}
        return Snapshot(self.carry, self.history, {**totals, "stopped": self.stopped, "manifest": self.manifest})

    def go_on_from(self, saved: Snapshot) -> None:
        totals = saved.totals
        self.carry, self.history = saved.carry, saved.history
        if self.t > self.T:
            raise ValueError(f"`T` of minimize must not be less than the {self.t} steps already saved. Got {self.T}.")
        self.cost, self.stopped = Cost(**totals["cost"]), totals["stopped"]
        self.seconds, self.compile_seconds = totals["seconds"], totals["compile_seconds"]
        resumed = [*totals["manifest"].get("resumed_at", ()), self.t]
        self.manifest = {**totals["manifest"], "T": self.T, "resumed_at": resumed}

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
        means = {name: float(a.mean()) for name, a in log.aux.items() if a.ndim == 1 and name != "F"}
        self.record({**means, **level_counts(log.aux), **cost_columns(log.aux)})

    def take(self, carry: Carry, n: int) -> tuple[Carry, Log]:
        """n steps from this carry, with the contexts that they need."""
        return self.chunk(carry=carry, n=n, feed=self.feeder.after(int(carry.t)) if self.feeder else None)

    def stop_at(self, before: Carry, good: int, log: Log) -> None:
        """Step number ``good`` of this chunk spoilt x: go back to the last finite iterate."""
        self.carry, _ = self.take(before, good)  # draws are addressed: the same steps again
        from bilevelax.run.watched import causes

        level = f" (level k = {log.aux['level'][good]:g})" if "level" in log.aux else ""
        read = self.feeder.tell(int(before.t), good) if self.feeder else ""
        raise RunStopped(
            f"x became non-finite at t = {self.t + 1}{level}. {causes(log.aux, good)}{read}", self.result()
        )

    def record(self, values: dict[str, float]) -> None:
        row = {"t": self.t, "seconds": self.seconds, **self.cost.asdict(), **values}
        for name, value in (self.metrics(self.x) if self.metrics else {}).items():
            if np.ndim(value) != 0 or not np.isfinite(float(value)):
                raise RunStopped(
                    f"metric `{name}` must be one finite number. Got {value!r} at t = {self.t}.", self.result()
                )
            row[name] = float(value)
            row.pop(f"{name}_error", None)
        for question in self.questions:
            if len(self.history) % question.chunks == 0:
                stop, columns = self.asked(question)
                self.stopped, row = self.stopped or stop, row | columns
        self.history.append(row)

    def asked(self, question: Question) -> tuple[bool, Row]:
        """The answer where the run stands; if the question fails, the run so far is not lost."""
        try:
            stop, columns = question.ask(self.x, random.fold_in(question.key, self.t))
            return bool(stop), {name: float(value) for name, value in columns.items()}
        except RunStopped:
            raise
        except Exception as error:
            reason = (str(error) or "no message").splitlines()[0]
            reason = reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}."
            raise RunStopped(
                f"`{question.name}` of minimize failed at t = {self.t}: {reason}", self.result()
            ) from error

    def result(self) -> Result:
        c = self.here(self.carry)
        return Result(
            c.x, c.x_hat, c.x_mean, self.history, self.cost, self.seconds, self.compile_seconds, self.manifest
        )
