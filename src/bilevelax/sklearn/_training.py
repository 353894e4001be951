"""How a policy is trained under one penalty: the data of its problem, the gradient, the optimizer, costs on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

from bilevelax.applications.newsvendor.adversary import Losses
from bilevelax.applications.newsvendor.orders import mean_cost
from bilevelax.applications.newsvendor.prepare import Prepared, WeightedDemands, prepare, problem_rows
from bilevelax.applications.newsvendor.rows import Rows, context_at, newsvendor_problem, with_penalty
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_choice
from bilevelax.core.estimate import Estimator
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.envelope import best_answers, envelope
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.run.minimize import minimize
from bilevelax.run.records.result import Result
from bilevelax.sklearn.conditional import make_conditional

OWNER = "RobustNewsvendor"
ESTIMATORS = ("auto", "rt_mlmc", "dl_sgd", "saa")
EVERY = 50  # steps between two looks at the costs
LOOKED = 20_000  # rows, evenly spaced, whose costs make the curves and choose steps and penalty


@lru_cache(maxsize=64)
def make_estimator(choice: Any, batch: int, steps: int, owner: str) -> Estimator:
    """The named estimator on ``batch`` contexts; the same object for equal settings."""
    if isinstance(choice, Estimator):
        return choice
    require_choice("estimator", owner, choice, ESTIMATORS)
    if choice == "auto":
        return envelope(batch, steps, n="all")
    made = {"rt_mlmc": lambda: rt_mlmc(4), "dl_sgd": lambda: dl_sgd(4), "saa": lambda: saa(n="all")}[choice]()
    return minibatch(made, batch)


@lru_cache(maxsize=64)
def make_optimizer(learning_rate: float, max_iter: int, decay: float) -> optax.GradientTransformation:
    """AdamW whose step falls to a tenth along a cosine."""
    return optax.adamw(optax.cosine_decay_schedule(learning_rate, max_iter, alpha=0.1), weight_decay=decay)


class Training(NamedTuple):
    """What the settings of a newsvendor come to, apart from rows, penalty and number of steps."""

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

    @property
    def key(self) -> Key:
        return random.key(self.seed)

    @property
    def every(self) -> int:
        return min(self.max_iter, EVERY)

    def problem(self, rows: Rows) -> Problem:
        return newsvendor_problem(self.losses, rows)


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


def costs_of(static: PyTree, lesson: Lesson) -> Callable[[X], dict[str, float]]:
    """x -> mean true cost of a row, of those trained on and of those held out."""
    samples = {"train": lesson.train} | ({} if lesson.held is None else {"validation": lesson.held})
    few = {name: sample.thinned(LOOKED) for name, sample in samples.items()}
    return lambda x: {name: mean_cost(static, x, lesson.prepared, sample) for name, sample in few.items()}


class Trained(NamedTuple):
    """Where training ended, and all that was looked at on the way, row by row of the history."""

    x: X
    visited: list[X]
    history: list[dict[str, float]]
    stopped: bool


def train(how: Training, lesson: Lesson, penalty: float, x1: X, key: Key, T: int, patience: int = 0) -> Trained:
    """`minimize` under watch."""
    watch = Watch(costs_of(how.static, lesson), patience)
    result: Result = minimize(
        how.problem(with_penalty(lesson.rows, how.scales, penalty)),
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


@program(static_argnames="steps")
def answers(problem: Problem, x: X, steps: int) -> Any:
    """The adversary's answers on every row of the problem."""
    rows = problem.data.contexts.shape[0]
    xi = jax.vmap(lambda i: context_at(i, problem.data))(jnp.arange(rows, dtype=jnp.int32))
    return best_answers(problem, x, xi, jax.vmap(problem.outcomes)(xi), steps)
