r"""Totals to reach an eps-stationary point: E|grad F(x_hat)|^2 <= eps^2 for a uniform iterate x_hat (Theorem 1).

For each eps a run has the constant step alpha = c eps^2 of the theorem. E|grad F(x_hat_T)|^2 is the
mean over t <= T and over seeds of |grad F(x_t)|^2, which is evaluated exactly at every step. The
number of steps is the T from which on that mean is at most eps^2.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from bilevelax.estimate import Estimator
from bilevelax.experiments._items import Row
from bilevelax.experiments._statistics import Interval, bootstrap, exponent
from bilevelax.experiments._trajectories import seed_keys, trajectories
from bilevelax.problem import Problem, X

CHUNKS = 200
UNIT_STEP = optax.sgd(1.0)
COUNTS = ("xi", "eta", "grad_f", "grad_g")


def square_of(grad_F: Callable[[X], Any]) -> Callable[[X], dict[str, Any]]:
    """What to watch at every step. Make it once: runs with the same object share a compiled program."""
    return lambda x: {"square": jnp.sum(grad_F(x) ** 2)}


def measure(
    problem: Problem,
    estimator: Estimator,
    x1: X,
    square: Callable[[X], dict[str, Any]],
    /,
    *,
    eps: float,
    c: float,
    horizon: float,
    seeds: int,
    together: bool = False,
    **labels: Any,
) -> list[Row]:
    """One row per seed: the running mean of |grad F|^2 and the oracle calls per step.

    Args:
        square: x -> {"square": |grad F(x)|^2}; see `square_of`.
        c: the step is alpha = c eps^2.
        horizon: the run has horizon / eps^4 steps, in CHUNKS chunks.
        labels: further columns, e.g. the method's name.
    """
    every = max(1, round(horizon / eps**4 / CHUNKS))
    runs = trajectories(
        problem,
        estimator,
        UNIT_STEP,
        x1,
        seed_keys(seeds),
        T=every * CHUNKS,
        every=every,
        every_step=square,
        scales=[c * eps**2] * seeds,
        together=together,
    )
    T = int(runs.t[-1])
    return [
        {
            **labels,
            "eps": eps,
            "seed": seed,
            "every": every,
            "mean_square": [float(f"{v:.5g}") for v in runs.means["square"][seed, 1:]],
            **{name: float(runs.cost[name][seed, -1] / T) for name in COUNTS},
            "seconds": runs.seconds,
        }
        for seed in range(seeds)
    ]


def steps_needed(mean_square: np.ndarray, every: int, eps: float) -> float:
    """The T from which on the mean over seeds (rows) is at most eps^2, interpolated; nan if it is not in the end."""
    curve = mean_square.mean(0)
    above = np.flatnonzero(curve > eps**2)
    i = int(above[-1]) + 1 if len(above) else 0
    if i == len(curve):
        return float("nan")
    if i == 0:
        return float(every)
    high, low = np.log(curve[i - 1]), np.log(curve[i])
    return float(every * (i + (high - 2 * np.log(eps)) / (high - low)))


def or_more(steps: float) -> float:
    """Infinity for a target that was not reached: more than was run."""
    return float("inf") if np.isnan(steps) else steps


class Totals:
    """Steps and oracle calls against eps, from the rows of `measure` of one method."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.eps = sorted({row["eps"] for row in rows}, reverse=True)
        by_eps = [[row for row in rows if row["eps"] == eps] for eps in self.eps]
        self.every = [group[0]["every"] for group in by_eps]
        self.seeds = len(by_eps[0])
        self.curves = np.asarray([[row["mean_square"] for row in group] for group in by_eps]).swapaxes(0, 1)
        self.per_step = {name: [float(np.mean([row[name] for row in group])) for group in by_eps] for name in COUNTS}

    def _needed(self, curves: np.ndarray, i: int) -> float:
        return steps_needed(curves, self.every[i], self.eps[i])

    def needed(self, curves: np.ndarray) -> np.ndarray:
        """Steps for each eps according to these curves, (seeds, eps, chunks)."""
        return np.asarray([self._needed(curves[:, i], i) for i in range(len(self.eps))])

    def steps(self) -> list[Interval]:
        """T for each eps."""
        return self._steps

    @functools.cached_property
    def _steps(self) -> list[Interval]:  # thousands of resamples for each eps, asked for by every table
        def at(i: int) -> Interval:  # a resample that ends above eps would need more steps than were run
            return bootstrap(lambda curves: or_more(self._needed(curves, i)), self.curves[:, i])

        return [at(i) for i in range(len(self.eps))]

    def calls(self, name: str) -> list[Interval]:
        """Oracle calls of one kind for each eps."""
        return [Interval(*(n * part for part in T)) for n, T in zip(self.per_step[name], self.steps(), strict=True)]

    @property
    def missed(self) -> list[float]:
        """The eps that were not reached within the run."""
        return [eps for eps, T in zip(self.eps, self.needed(self.curves), strict=True) if not np.isfinite(T)]

    def exponent(self, name: str | None = None) -> Interval:
        """p of calls ~ eps^p (of steps where no kind is named), over the eps that the mean of all seeds reached.

        The same eps in every resample; one that misses any of them has no exponent.
        """
        there = self._there
        if len(there) < 2 or name is None:
            return self._exponent
        each = exponent([self.eps[i] for i in there], [self.per_step[name][i] for i in there])
        return Interval(*(part + each for part in self._exponent))  # slopes of logarithms add up

    @functools.cached_property
    def _there(self) -> list[int]:
        missed = self.missed
        return [i for i, eps in enumerate(self.eps) if eps not in missed]

    @functools.cached_property
    def _exponent(self) -> Interval:
        if len(self._there) < 2:
            return Interval(*[float("nan")] * 3)

        def fitted(curves: np.ndarray) -> float:
            found = [self._needed(curves[:, i], i) for i in self._there]
            return exponent([self.eps[i] for i in self._there], found) if np.all(np.isfinite(found)) else float("nan")

        return bootstrap(fitted, self.curves)

    def neighbours(self) -> list[float]:
        """p of steps ~ eps^p between each eps and the next, of those that were reached."""
        found, there = self.needed(self.curves), self._there
        return [exponent([self.eps[i], self.eps[j]], [found[i], found[j]]) for i, j in itertools.pairwise(there)]
