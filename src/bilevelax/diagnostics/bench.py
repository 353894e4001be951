"""How candidates of `tune` are measured: laps of calls, alone or together in one program, and what they tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random

from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.averages import Lanes, averages, calls_of
from bilevelax.diagnostics.bias import Bias, relative_bias
from bilevelax.diagnostics.candidates import Candidate
from bilevelax.diagnostics.estimates import means, optimised_means
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.reference import Reference
from bilevelax.problems.little import little_work

CALLS_A_LAP = 8  # of an estimator in one measurement
NOISELESS = 1e-3  # relative to the gradient's terms: noise that nobody needs to reduce


class Trial(NamedTuple):
    """What is known of one candidate."""

    name: str
    estimator: Estimator
    compile_seconds: float
    seconds: float  # of one call, the median
    variance: float  # of one call, the trace of its covariance
    bias: Bias  # relative to the size of the gradient's terms
    calls: int
    unbiased: bool = False  # by how it is made, or nearly

    def score(self, tol: float) -> tuple[bool, float]:
        """Smaller is better: no bias above ``tol`` that can be seen, then time x variance; infinite if not finite."""
        biased = self.bias.decided(tol) is False
        size = self.bias.estimate if biased else self.seconds * self.variance
        return biased, size if np.isfinite(size) else np.inf

    def doubtful(self, tol: float) -> bool:
        """Whether its bias may be above ``tol``, for all that is known."""
        decided = self.bias.decided(tol)
        return decided is False or (decided is None and not self.unbiased)


class Lap(NamedTuple):
    """Rows of gradients and what each measurement took."""

    rows: np.ndarray
    off: np.ndarray  # the same less exact gradients of the contexts met: their bias, without the noise of contexts
    seconds: list[float]
    compile_seconds: float
    shared: bool = False  # by the program that measures many


def _measure(key: Key, call: Callable[[Key], Any], before: Lap | None, times: int, shared: bool) -> Lap:
    """``times`` more measurements of CALLS_A_LAP calls: ``call`` stacks gradients, and exact ones of the contexts met.

    The first of all compiles.
    """
    rows, off, seconds, compile_seconds, _ = before or Lap(np.zeros(0), np.zeros(0), [], 0.0)
    for i in range(times + (before is None)):
        started = time.perf_counter()
        key_i = random.fold_in(key, len(seconds) + 1 if len(rows) else 0)
        grad, exact = jax.block_until_ready(call(key_i))
        took = time.perf_counter() - started
        if before is None and i == 0:
            compile_seconds = took
        else:
            seconds = [*seconds, took / CALLS_A_LAP]
        new = flat_rows(grad), flat_rows(grad) - np.asarray(exact)
        rows, off = new if not len(rows) else (np.concatenate([rows, new[0]]), np.concatenate([off, new[1]]))
    return Lap(rows, off, seconds, compile_seconds, shared)


class Bench(NamedTuple):
    """Where candidates are measured."""

    problem: Problem
    x: X
    exact: Reference
    key: Key
    left: Callable[[], float]  # seconds
    tol: float
    lanes: Lanes  # contexts of the candidates that one program measures

    def alone(self, each: Candidate, before: Lap | None, times: int, timed: bool = True) -> Lap:
        """By a program of its own, optimised as that of a run where its time counts."""
        where = self.problem, self.x, self.exact.contexts, self.exact.grads
        program = optimised_means if timed else means

        def call(key: Key) -> tuple[Any, Any]:
            found = program(key, *where, estimator=each.estimator, batches=CALLS_A_LAP)
            return found.grad, found.met

        return _measure(self.key, call, before, times, shared=False)

    @property
    def little(self) -> bool:
        """Whether its programs are sooner compiled than optimised."""
        return little_work(self.key, self.problem, self.x)

    def exactly(self, each: Candidate, times: int) -> Lap:
        """One that takes all outcomes: whether that leaves no noise is told by a program that compiles soon."""
        return self.alone(each, None, times, timed=not self.little)

    def together(self, each: Candidate, before: Lap | None, times: int) -> Lap:
        """By the program that measures sample averages of any size; in its blocks they take longer than alone."""
        where = self.problem, self.x, self.exact.contexts, calls_of(each.n or 1, CALLS_A_LAP), self.lanes
        mean = lambda a: np.mean(np.asarray(a, np.float64), axis=1)  # over the contexts of a call

        def call(key: Key) -> tuple[Any, Any]:
            grads, _, exact = averages(key, *where, self.exact.grads)
            return jax.tree.map(mean, grads), exact

        return _measure(self.key, call, before, times, shared=True)

    def trial(self, each: Candidate, lap: Lap) -> Trial:
        bias = relative_bias(lap.off, self.exact.scale, self.exact.stderr)
        variance, seconds = float(lap.rows.var(0, ddof=1).sum()), float(np.median(lap.seconds))
        about = lap.compile_seconds, seconds, variance, bias, len(lap.rows), each.unbiased
        return Trial(each.name, each.estimator, *about)

    def noiseless(self, trial: Trial) -> bool:
        """Whether less variance would not help: no bias, and calls that hardly differ."""
        return trial.bias.decided(self.tol) is True and trial.variance <= (NOISELESS * self.exact.scale) ** 2
