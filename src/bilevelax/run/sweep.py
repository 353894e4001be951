"""Many runs as one program: cells that differ in step and seed only are a `vmap`, saved and resumed together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

from bilevelax.base.compiling import program
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.run.records.checkpoint import Checkpoint
from bilevelax.run.records.fingerprint import Identity, identity
from bilevelax.run.records.history import Row
from bilevelax.run.records.progress import Progress
from bilevelax.run.records.result import Snapshot
from bilevelax.run.run import Metrics
from bilevelax.run.steps import Carry, initial_carry, take_steps

OptimizerOf = Callable[[Any], optax.GradientTransformation]  # of a step size, which may be traced
FIRST_LOOK = 0.25  # of T: before, nothing is given up
SEEDS = 3  # fewer say nothing about chance


class Setting(NamedTuple):
    step: float
    seed: int


class Sweep(NamedTuple):
    """What the cells of one program share."""

    problem: Problem
    estimator: Estimator
    optimizer_of: OptimizerOf
    x1: X
    metrics: Metrics
    metric: str  # by which cells are compared; smaller is better
    T: int
    every: int


@program(static_argnames=("estimator", "optimizer_of"))
def advance(
    problem: Problem,
    carry: Carry,
    keys: Key,
    steps: jax.Array,
    n: jax.Array,
    *,
    estimator: Estimator,
    optimizer_of: OptimizerOf,
) -> Carry:
    """n steps of every cell."""

    def one(carry: Carry, key: Key, step: jax.Array) -> Carry:
        return take_steps(problem, estimator, optimizer_of(step), carry, key, n)[0]

    return jax.vmap(one)(carry, keys, steps)


class Cells:
    """The host's side of the cells: where they stand, which of them go on."""

    def __init__(self, sweep: Sweep, cells: list[Setting], rivals: Mapping[int, float]) -> None:
        self.sweep, self.cells, self.rivals = sweep, cells, rivals
        self.keys = jnp.stack([random.key(cell.seed) for cell in cells])
        self.steps = jnp.asarray([cell.step for cell in cells], dtype=float)
        first = lambda step: initial_carry(sweep.problem, sweep.estimator, sweep.optimizer_of(step), sweep.x1)
        self.carry = jax.vmap(first)(self.steps)
        self.active = list(range(len(cells)))
        self.history: list[Row] = []
        self.given_up: dict[str, str] = {}  # cell -> why
        self.t, self.seconds = 0, 0.0

    def identity(self) -> Identity:
        s = self.sweep
        optimizer = s.optimizer_of(self.cells[0].step)
        found = identity(s.problem, s.estimator, optimizer, s.x1, random.key(0), s.every)
        return {**found, "settings": {**found["settings"], "cells": [list(cell) for cell in self.cells]}}

    def snapshot(self) -> Snapshot:
        totals = {"t": self.t, "active": self.active, "given_up": self.given_up, "seconds": self.seconds}
        return Snapshot(self.carry, self.history, {**totals, "manifest": {}})

    def go_on_from(self, saved: Snapshot) -> None:
        self.carry, self.history = saved.carry, saved.history
        self.t, self.active, self.given_up, self.seconds = (
            saved.totals[name] for name in ("t", "active", "given_up", "seconds")
        )

    def result(self) -> Cells:
        return self

    def advance(self) -> None:
        """One chunk of the cells that go on, in as many lanes as a power of two: few programs, little waste."""
        s, n = self.sweep, min(self.sweep.every, self.sweep.T - self.t)
        lanes = min(1 << (len(self.active) - 1).bit_length(), len(self.cells))
        rows = jnp.asarray((self.active + self.active[:1] * lanes)[:lanes])
        started = time.perf_counter()
        some = jax.tree.map(lambda a: a[rows], self.carry)
        settings = {"estimator": s.estimator, "optimizer_of": s.optimizer_of}
        some = advance(s.problem, some, self.keys[rows], self.steps[rows], n, **settings)
        real = jnp.asarray(self.active)
        self.carry = jax.tree.map(lambda a, new: a.at[real].set(new[: len(real)]), self.carry, some)
        jax.block_until_ready(self.carry)
        self.seconds += time.perf_counter() - started
        self.t += n
        self.record()
        if self.t >= FIRST_LOOK * s.T:
            self.give_up()

    def record(self) -> None:
        """A row for each cell that goes on; those whose x is not finite do not."""
        for cell in list(self.active):
            x = jax.tree.map(lambda a: a[cell], self.carry.x)  # noqa: B023 (used at once)
            values = {name: float(value) for name, value in self.sweep.metrics(x).items()}
            if not np.isfinite(list(values.values())).all() or not all(
                np.isfinite(leaf).all() for leaf in jax.tree.leaves(x)
            ):
                self.active.remove(cell)
                self.given_up[str(cell)] = f"not finite at t = {self.t}"
                continue
            self.history.append({"t": self.t, "cell": cell, **values})

    def give_up(self) -> None:
        """Cells of a step that is surely worse than another: two standard errors apart on both sides."""
        found = bounds(self.history, self.cells, self.sweep.metric, self.t)
        least = min([high for _, high in found.values()] + [self.rivals.get(self.t, np.inf)], default=np.inf)
        for cell in list(self.active):
            low, _ = found.get(self.cells[cell].step, (-np.inf, np.inf))
            if low > least:
                self.active.remove(cell)
                self.given_up[str(cell)] = f"hopeless at t = {self.t}"


def bounds(history: list[Row], cells: list[Setting], metric: str, t: int) -> dict[float, tuple[float, float]]:
    """Mean of the metric at t minus and plus two standard errors, for every step with seeds enough."""
    values: dict[float, list[float]] = {}
    for row in history:
        if row["t"] == t:
            values.setdefault(cells[int(row["cell"])].step, []).append(row[metric])
    spread = {step: 2 * np.std(each, ddof=1) / len(each) ** 0.5 for step, each in values.items() if len(each) >= SEEDS}
    return {step: (np.mean(values[step]) - width, np.mean(values[step]) + width) for step, width in spread.items()}


def run_cells(
    sweep: Sweep,
    cells: list[Setting],
    folder: Any,
    rivals: Mapping[int, float] | None = None,
    resume: str = "auto",
    label: str = "sweep",
    progress: bool | None = None,
) -> Cells:
    """All cells to the end, or until they are hopeless; the folder keeps them as `minimize` keeps a run."""
    run = Cells(sweep, cells, rivals or {})
    if sweep.metric not in (known := sweep.metrics(sweep.x1)):
        raise ValueError(f"`metric` of a sweep must be one of {', '.join(known)}. Got {sweep.metric!r}.")
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(Checkpoint(folder).keeper(sweep.T, resume))
        if saved := keeper.restore(run):
            run.go_on_from(saved)
        bar = stack.enter_context(Progress(sweep.T, progress, label))
        bar.note("compiling")
        while run.t < sweep.T and run.active:
            run.advance()
            bar.update(run.t, {"cells": len(run.active)})
            keeper.keep(run)
        keeper.keep(run, last=True)
    return run
