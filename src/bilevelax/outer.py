"""The SGD framework (Algorithm 2) on any optax optimizer, compiled in chunks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random
from optax import tree

from bilevelax import trees
from bilevelax.diagnostics.along import diagnosis
from bilevelax.diagnostics.certify import StopWhen
from bilevelax.diagnostics.tune import tune
from bilevelax.errors import RunStopped, require_choice, require_integer, require_key
from bilevelax.estimate import Cost, Estimate, Estimator
from bilevelax.history import Row, environment, level_counts, load_run, save_run
from bilevelax.problem import Key, Problem, PyTree, X
from bilevelax.progress import Progress
from bilevelax.validate import as_arrays, check_shapes

Metrics = Callable[[X], dict[str, float]]
Callback = Callable[[Row, X], None]

ROLE_STOP, ROLE_TUNE, ROLE_DIAGNOSE = 2**31, 2**31 + 1, 2**31 + 2  # beyond every t: steps are addressed by (key, t)


class Carry(NamedTuple):
    """All that moves from step to step: what a checkpoint has to hold."""

    t: jax.Array  # steps taken
    x: X
    x_hat: X  # uniform on x_1..x_t
    x_mean: X  # mean of x_1..x_t
    opt_state: PyTree
    est_state: PyTree


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


def initial_carry(problem: Problem, estimator: Estimator, optimizer: optax.GradientTransformation, x1: X) -> Carry:
    t = jnp.zeros((), jnp.int32)
    return Carry(t, x1, x1, tree.zeros_like(x1), optimizer.init(x1), estimator.init(problem, x1))


def step(
    problem: Problem, estimator: Estimator, optimizer: optax.GradientTransformation, carry: Carry, key: Key
) -> tuple[Carry, Estimate]:
    """One iteration of Algorithm 2, whose draws are addressed by (key, t)."""
    t, x = carry.t + 1, carry.x
    key_t, key_hat = random.split(random.fold_in(key, t))
    est, est_state = estimator.estimate(key_t, problem, x, carry.est_state)
    updates, opt_state = optimizer.update(est.grad, carry.opt_state, x)

    # x_t replaces x_hat with probability 1/t: uniform on x_1..x_t wherever the run may stop
    share = 1 / t.astype(float)
    chosen = random.uniform(key_hat, dtype=float) < share
    x_hat = jax.tree.map(lambda new, old: jnp.where(chosen, new, old), x, carry.x_hat)
    x_mean = trees.add_scale(carry.x_mean, share, tree.sub(x, carry.x_mean))
    return Carry(t, optax.apply_updates(x, updates), x_hat, x_mean, opt_state, est_state), est


class Log(NamedTuple):
    """What one step leaves behind for the host."""

    cost: Cost
    aux: dict[str, Any]
    finite: jax.Array


@partial(jax.jit, static_argnames=("estimator", "optimizer", "every"))
def chunk(
    problem: Problem,
    carry: Carry,
    key: Key,
    n: jax.Array,
    *,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    every: int,
) -> tuple[Carry, Log]:
    """n <= every iterations and their logs. n is traced: one program serves every chunk."""

    def one(carry: Carry) -> tuple[Carry, Log]:
        carry, est = step(problem, estimator, optimizer, carry, key)
        finite = jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(carry.x)]).all()
        return carry, jax.tree.map(jnp.asarray, Log(est.cost, est.aux, finite))

    def record(i: jax.Array, state: tuple[Carry, Log]) -> tuple[Carry, Log]:
        carry, log = one(state[0])
        return carry, jax.tree.map(lambda rows, row: rows.at[i].set(row.astype(rows.dtype)), state[1], log)

    shapes = jax.eval_shape(one, carry)[1]
    empty = jax.tree.map(lambda s: jnp.zeros((every, *s.shape), s.dtype), shapes)
    return lax.fori_loop(0, n, record, (carry, empty))


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
    stop_when: StopWhen | None = None,
    diagnose: int = 0,
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
        stop_when: ``(problem, x, key) -> (stop?, dict of columns)``, e.g. ``certified(eps)``; asked at x1
            and after each chunk, where its values become columns of the history.
        diagnose: every that many chunks, and at x1, measure the estimator's bias, variance and time where
            the run stands, and certify |grad F|^2; the columns are those of `diagnostics.along.diagnosis`.
            0: never.
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
    if isinstance(estimator, str):
        require_choice("estimator", "minimize", estimator, ("auto",))
        tuned = tune(problem, x1, key=random.fold_in(key, ROLE_TUNE))
        estimator, manifest["tuning"] = tuned.estimator, tuned.asdict()
    run = Run(problem, estimator, optimizer, key, min(every, T), metrics, stop_when, diagnose)
    run.begin(x1, manifest)
    with Progress(T, enabled=progress) as bar:
        while run.t < T and not run.stopped:
            run.advance(min(run.every, T - run.t))
            for callback in callbacks:
                callback(run.history[-1], run.carry.x)
            bar.update(run.t, run.history[-1])
    return run.result()


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
    ) -> None:
        self.chunk = partial(chunk, problem, key=key, estimator=estimator, optimizer=optimizer, every=every)
        self.first = partial(initial_carry, problem, estimator, optimizer)
        self.every = every
        self.metrics = metrics
        self.ask = partial(stop_when, problem) if stop_when else None
        self.key_stop = random.fold_in(key, ROLE_STOP)
        self.diagnose = diagnose
        self.diagnosis = partial(diagnosis(estimator), problem)
        self.key_diagnose = random.fold_in(key, ROLE_DIAGNOSE)
        self.stopped = False

    def begin(self, x1: X, manifest: dict[str, Any]) -> None:
        self.carry = self.first(x1)
        self.history: list[Row] = []
        self.cost = Cost()
        self.seconds = 0.0
        self.manifest = {**environment(), **manifest}
        started = time.perf_counter()
        jax.block_until_ready(self.chunk(carry=self.carry, n=0))  # no steps: compiles
        self.compile_seconds = time.perf_counter() - started
        self.record({})

    @property
    def t(self) -> int:
        return int(self.carry.t)

    def advance(self, n: int) -> None:
        """n more steps, a row of history, or `RunStopped`."""
        before = self.carry
        started = time.perf_counter()
        self.carry, log = jax.block_until_ready(self.chunk(carry=before, n=n))
        self.seconds += time.perf_counter() - started
        log = jax.tree.map(lambda a: np.asarray(a)[:n], log)
        if not log.finite.all():
            self.stop_at(before, int(np.argmin(log.finite)), log)
        self.cost = self.cost + jax.tree.map(lambda a: int(a.sum(dtype=np.int64)), log.cost)
        means = {name: float(a.mean()) for name, a in log.aux.items() if a.ndim == 1}
        self.record({**means, **level_counts(log.aux)})

    def stop_at(self, before: Carry, good: int, log: Log) -> None:
        """Step number ``good`` of this chunk spoilt x: go back to the last finite iterate."""
        self.carry, _ = self.chunk(carry=before, n=good)  # draws are addressed: the same steps again
        level = f" (level k = {log.aux['level'][good]:g})" if "level" in log.aux else ""
        raise RunStopped(
            f"x became non-finite at t = {self.t + 1}{level}. Usual causes: the outer step or beta0 too large, or "
            "long Neumann products with L_g1 underestimated. The last finite iterate is in the error's `result`.",
            self.result(),
        )

    def record(self, values: dict[str, float]) -> None:
        row = {"t": self.t, "seconds": self.seconds, **self.cost.asdict(), **values}
        for name, value in (self.metrics(self.carry.x) if self.metrics else {}).items():
            if np.ndim(value) != 0 or not np.isfinite(float(value)):
                raise RunStopped(
                    f"metric `{name}` must be one finite number. Got {value!r} at t = {self.t}; x there is in the "
                    "error's `result`.",
                    self.result(),
                )
            row[name] = float(value)
        if self.diagnose and len(self.history) % self.diagnose == 0:
            row |= self.diagnosis(self.carry.x, random.fold_in(self.key_diagnose, self.t))
        if self.ask:
            self.stopped, columns = self.ask(self.carry.x, random.fold_in(self.key_stop, self.t))
            row |= columns
        self.history.append(row)

    def result(self) -> Result:
        c = self.carry
        return Result(
            c.x, c.x_hat, c.x_mean, self.history, self.cost, self.seconds, self.compile_seconds, self.manifest
        )
