"""How a policy is trained under one penalty: the data of its problem, the gradient, the optimizer, costs on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optax
from jax import random

from bilevelax.applications.newsvendor.adversary import Losses
from bilevelax.applications.newsvendor.entropic import entropic_problem
from bilevelax.applications.newsvendor.orders import mean_cost
from bilevelax.applications.newsvendor.prepare import Prepared, WeightedDemands, prepare, problem_rows
from bilevelax.applications.newsvendor.rows import Rows, newsvendor_problem, with_penalty
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.run.minimize import minimize
from bilevelax.run.records.result import Result
from bilevelax.sklearn.conditional import make_conditional

OWNER = "RobustNewsvendor"
EVERY = 50  # steps between two looks at the costs
LOOKED = 20_000  # rows, evenly spaced, whose costs make the curves and choose steps and penalty


class Training(NamedTuple):
    """What the settings of a newsvendor come to, apart from rows, penalty and number of steps."""

    policy: Any  # as `make_policy` wants it
    x1: X
    static: PyTree  # what the rules of x share
    losses: Losses
    scales: np.ndarray  # how far the adversary may move each column
    conditional: Any  # as `make_conditional` wants it
    n_atoms: int
    together: bool  # one outcome of all atoms
    contexts: int  # rows of the problem; of more, a random subsample
    estimator: Estimator
    optimizer: optax.GradientTransformation
    max_iter: int
    progress: bool
    seed: int
    noise: float | None = None  # of an entropic adversary; None: the one of eq. (11)

    @property
    def key(self) -> Key:
        return random.key(self.seed)

    @property
    def every(self) -> int:
        return min(self.max_iter, EVERY)

    def problem(self, rows: Rows) -> Problem:
        return (newsvendor_problem if self.noise is None else entropic_problem)(self.losses, rows)

    def under(self, rows: Rows, penalty: float) -> Rows:
        """The rows under this price of moving a context."""
        return with_penalty(rows, self.scales, penalty, self.noise)


class Lesson(NamedTuple):
    """Rows to train on, as they are and as data of the problem, and the rows to judge by, if any."""

    prepared: Prepared
    rows: Rows
    train: WeightedDemands
    held: WeightedDemands | None = None


def lesson_of(how: Training, least: int, train: WeightedDemands, held: WeightedDemands | None = None) -> Lesson:
    """The lesson of these rows, padded to at least that many."""
    prepared = prepare(train, make_conditional(how.conditional, OWNER), how.seed)
    own = np.arange(len(train.X))
    if len(own) > how.contexts:
        own = np.sort(np.random.default_rng(how.seed).choice(own, how.contexts, replace=False))
    rows = problem_rows(prepared, train.take(own), how.n_atoms, how.together, how.seed, own, least)
    return Lesson(prepared, rows, train, held)


class Watch:
    """Every x that was looked at, and when to give up.

    Args:
        cost: ``x -> dict`` with a column ``validation``, or without it where nothing is held out.
        patience: looks without a lower validation cost after which to stop; 0 never stops.
    """

    def __init__(self, cost: Callable[[X], dict[str, float]], patience: int) -> None:
        self.cost, self.patience = cost, patience
        self.visited: list[X] = []
        self.costs: list[float] = []

    def metrics(self, x: X) -> dict[str, float]:
        row = self.cost(x)
        self.visited.append(x)
        self.costs.append(row.get("validation", 0.0))
        return row

    def stop(self, problem: Problem, x: X, key: Key) -> tuple[bool, dict[str, float]]:
        since = self.costs[1:]  # x1 is no result
        return bool(since) and 0 < self.patience < len(since) - int(np.argmin(since)), {}


def costs_of(how: Training, lesson: Lesson) -> Callable[[X], dict[str, float]]:
    """x -> mean true cost of a row, of those held out, or of those trained on where none are."""
    name, sample = ("train", lesson.train) if lesson.held is None else ("validation", lesson.held)
    few = sample.thinned(LOOKED)
    return lambda x: {name: mean_cost(how.policy, how.static, x, lesson.prepared, few)}


class Trained(NamedTuple):
    """Where training ended, and all that was looked at on the way, row by row of the history."""

    x: X
    visited: list[X]
    history: list[dict[str, float]]
    stopped: bool


def train(how: Training, lesson: Lesson, penalty: float, x1: X, key: Key, T: int, patience: int = 0) -> Trained:
    """`minimize` under watch."""
    watch = Watch(costs_of(how, lesson), patience)
    result: Result = minimize(
        how.problem(how.under(lesson.rows, penalty)),
        how.estimator,
        how.optimizer,
        x1,
        key=key,
        T=T,
        every=how.every,
        metrics=watch.metrics,
        stop_when=watch.stop,
        progress=how.progress,
    )
    return Trained(result.x, watch.visited, result.history, int(result.history[-1]["t"]) < T)
