"""The host's side of a run: chunk after chunk, what is recorded of them, and when they must stop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax import random
from jax.sharding import Mesh

from bilevelax.checkpoint import Snapshot
from bilevelax.devices import automatic, columns_of, local, over_devices, replicate
from bilevelax.diagnostics.along import diagnosis
from bilevelax.diagnostics.certify import StopWhen
from bilevelax.errors import RunStopped
from bilevelax.estimate import Cost, Estimator
from bilevelax.feed import Feeder
from bilevelax.history import Row, environment, level_counts
from bilevelax.problem import Key, Problem, X
from bilevelax.result import Result
from bilevelax.steps import Carry, Log, chunk, initial_carry, step_keys

Metrics = Callable[[X], dict[str, float]]

ROLE_STOP, ROLE_TUNE, ROLE_DIAGNOSE = 2**31, 2**31 + 1, 2**31 + 2  # beyond every t: steps are addressed by (key, t)


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
        mesh = automatic(mesh) if mesh else None
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
            key = random.fold_in(self.key_diagnose, self.t)
            row |= self.told("diagnose", lambda: self.diagnosis(self.x, key))
        if self.ask:
            self.stopped, columns = self.told("stop_when", partial(self.answer, self.ask))
            row |= columns
        self.history.append(row)

    def answer(self, ask: Callable[[X, Key], tuple[Any, dict[str, Any]]]) -> tuple[bool, dict[str, float]]:
        stop, columns = ask(self.x, random.fold_in(self.key_stop, self.t))
        return bool(stop), {name: float(value) for name, value in columns.items()}

    def told(self, name: str, measure: Callable[[], Any]) -> Any:
        """What a measurement between chunks says; if it fails, the run so far is not lost."""
        try:
            return measure()
        except RunStopped:
            raise
        except Exception as error:
            reason = (str(error) or "no message").splitlines()[0]
            reason = reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}."
            raise RunStopped(f"`{name}` of minimize failed at t = {self.t}: {reason}", self.result()) from error

    def result(self) -> Result:
        c = self.here(self.carry)
        return Result(
            c.x, c.x_hat, c.x_mean, self.history, self.cost, self.seconds, self.compile_seconds, self.manifest
        )
