"""How a policy is trained: the gradient, the optimizer, early stopping on true costs, the path of penalties."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random

from bilevelax import trees
from bilevelax.errors import require_choice
from bilevelax.estimate import Cost, Estimate, Estimator, stateless
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.minibatch import minibatch
from bilevelax.outer import minimize
from bilevelax.problem import Key, Problem, X
from bilevelax.result import Result
from bilevelax.sklearn._problem import context_at

NAMES = ("auto", "rt_mlmc", "dl_sgd", "saa")


def envelope(batch: int, steps: int) -> Estimator:
    """Danskin's gradient on ``batch`` contexts, with exact expectations over the outcomes of each.

    All contexts enter one loss, so that its gradient is a few matrix products instead of one
    gradient a context.
    """

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        keys = jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(batch, dtype=jnp.int32))
        xi = jax.vmap(problem.context)(keys)
        eta = jax.vmap(problem.outcomes)(xi)
        y = ascend(problem, x, xi, eta, steps)
        grad = trees.scale(1 / batch, _summed(problem.weighted()).grad_f(x, y, eta, xi)[0])
        outcomes = batch * eta[1].shape[1]
        cost = Cost(xi=batch, eta=outcomes, grad_f=outcomes, grad_g=steps * outcomes)
        return Estimate(grad, cost, {})

    return stateless(estimate)


def ascend(problem: Problem, x: X, xi: Any, eta: Any, steps: int) -> Any:
    """The adversary's answers at stacked contexts: gradient steps of sizes 1, 2/3, 2/4, ... (curvature is about 1)."""
    whole = _summed(problem.weighted())
    start = jax.vmap(lambda xi: problem.start(x, xi))(xi)
    return lax.fori_loop(0, steps, lambda j, y: trees.add_scale(y, -2 / (j + 2), whole.grad_g(x, y, eta, xi)), start)


@partial(jax.jit, static_argnames="steps")
def answers(problem: Problem, x: X, steps: int) -> Any:
    """`ascend` on every row of the problem."""
    rows = problem.data.contexts.shape[0]
    xi = jax.vmap(lambda i: context_at(i, problem.data))(jnp.arange(rows, dtype=jnp.int32))
    return ascend(problem, x, xi, jax.vmap(problem.outcomes)(xi), steps)


def _summed(problem: Problem) -> Problem:
    """The sum of the losses over stacked y, eta and xi."""

    def over(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda x, y, eta, xi: jnp.sum(jax.vmap(loss, in_axes=(None, 0, 0, 0))(x, y, eta, xi))

    return dataclasses.replace(problem, f=over(problem.f), g=over(problem.g))


@lru_cache(maxsize=64)
def make_estimator(choice: Any, batch: int, steps: int, owner: str) -> Estimator:
    """The named estimator on ``batch`` contexts; the same object for equal settings."""
    if isinstance(choice, Estimator):
        return choice
    require_choice("estimator", owner, choice, NAMES)
    if choice == "auto":
        return envelope(batch, steps)
    made = {"rt_mlmc": lambda: rt_mlmc(4), "dl_sgd": lambda: dl_sgd(4), "saa": lambda: saa(n="all")}[choice]()
    return minibatch(made, batch)


@lru_cache(maxsize=64)
def make_optimizer(learning_rate: float, max_iter: int, decay: float) -> optax.GradientTransformation:
    """AdamW whose step falls to a tenth along a cosine."""
    return optax.adamw(optax.cosine_decay_schedule(learning_rate, max_iter, alpha=0.1), weight_decay=decay)


class Settings(NamedTuple):
    """What `minimize` needs beside problem and x1."""

    estimator: Estimator
    optimizer: optax.GradientTransformation
    every: int
    T: int
    progress: bool


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


class Trained(NamedTuple):
    """Where training ended, and all that was looked at on the way, row by row of the history."""

    x: X
    visited: list[X]
    history: list[dict[str, float]]
    stopped: bool


def train(
    problem: Problem, x1: X, key: Key, settings: Settings, cost: Callable[[X], dict[str, float]], patience: int = 0
) -> Trained:
    """`minimize` under watch."""
    watch = Watch(cost, patience)
    result: Result = minimize(
        problem,
        settings.estimator,
        settings.optimizer,
        x1,
        key=key,
        T=settings.T,
        every=settings.every,
        metrics=watch.metrics,
        stop_when=watch.stop,
        progress=settings.progress,
    )
    return Trained(result.x, watch.visited, result.history, int(result.history[-1]["t"]) < settings.T)
