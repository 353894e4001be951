"""Training curves: one method for T upper iterations from x1, with any step rule, seed and T in one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevelax.estimate import Cost, Estimator
from bilevelax.experiments._trajectories import run_segments, seed_keys
from bilevelax.problem import Key, Problem, X
from bilevelax.schedules import sqrt_then_linear_size

ROLE_RUN, ROLE_TUNE, ROLE_ADAPT = range(3)  # of a seed: runs that are reported, runs that are not, adaptation
KINDS = ("paper", "constant", "adam")


class Rule(NamedTuple):
    """A step rule: the paper's 1/sqrt(t) and after t0 1/t, a constant, or Adam's rate, each times ``scale``."""

    kind: str
    scale: float
    t0: int = 0

    def __str__(self) -> str:
        if self.kind == "paper":
            return f"{'' if self.scale == 1 else f'{self.scale:g} x '}1/sqrt(t) to t0 = {self.t0}, then 1/t"
        return f"{'Adam' if self.kind == 'adam' else 'SGD, constant'} {self.scale:g}"

    def numbers(self) -> Numbers:
        return Numbers(*(jnp.asarray(v, float) for v in (KINDS.index(self.kind), self.scale, self.t0)))


class Numbers(NamedTuple):
    """A rule as arrays, so that one program serves every rule."""

    kind: jax.Array
    scale: jax.Array
    t0: jax.Array


def optimizer(rule: Numbers) -> optax.GradientTransformation:
    """SGD with the rule's steps, or Adam."""
    adam = optax.scale_by_adam()

    def update(grad: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        count, inner = state
        adapted, inner = adam.update(grad, inner, params)
        size = rule.scale * jnp.where(rule.kind == 0, sqrt_then_linear_size(count, rule.t0), 1.0)
        move = lambda g, a: -size.astype(g.dtype) * jnp.where(rule.kind == KINDS.index("adam"), a, g)
        return jax.tree.map(move, grad, adapted), (count + 1, inner)

    return optax.GradientTransformation(lambda x: (jnp.zeros((), jnp.int32), adam.init(x)), update)


class Curve(NamedTuple):
    """What a run leaves at each checkpoint, stacked."""

    x: X
    cost: Cost  # oracle calls so far


def run(problem: Problem, x1: X, key: Key, rule: Numbers, gaps: jax.Array, estimator: Estimator) -> Curve:
    """x and the oracle calls so far after gaps[0], gaps[0] + gaps[1], ... iterations."""
    found = run_segments(problem, estimator, optimizer(rule), x1, key, gaps)[1]
    return Curve(found.looked, jax.tree.map(lambda a: jnp.cumsum(a, dtype=a.dtype), found.cost))


run_one = partial(jax.jit, static_argnames="estimator")(run)


def checkpoints_of(T: int, n: int) -> tuple[int, ...]:
    """0 and n iterations up to T, ever further apart."""
    return (0, *(max(i, round(T * (i / n) ** 2)) for i in range(1, n + 1)))


def gaps_of(checkpoints: Sequence[int]) -> jax.Array:
    return jnp.diff(jnp.asarray((0, *checkpoints), jnp.int32))


def train(problem: Problem, x1: X, estimator: Estimator, rule: Rule, *, seed: int, checkpoints: Sequence[int]) -> Curve:
    """One method with one rule and seed. Equal estimators and numbers of checkpoints share a compiled program."""
    key = seed_keys(seed + 1, ROLE_RUN)[seed]
    return run_one(problem, x1, key, rule.numbers(), gaps_of(checkpoints), estimator=estimator)


def unstack(xs: X) -> list[X]:
    """The list of x of a stack."""
    leaves, structure = jax.tree.flatten(xs)
    return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


class Trial(NamedTuple):
    """A rule and the validation loss of its last iterate, in the mean over tuning seeds and on each of them."""

    rule: Rule
    loss: float
    each: tuple[float, ...] = ()


def tune(
    problem: Problem,
    x1: X,
    estimator: Estimator,
    rules: Sequence[Rule],
    loss: Callable[[list[X]], np.ndarray],
    *,
    checkpoints: Sequence[int],
    seeds: int = 1,
) -> list[Trial]:
    """Every rule on seeds that are used for nothing else; one that diverges on any has an infinite loss.

    One run after another, in the program of the runs that are reported where ``checkpoints`` are as many: on one
    core 14 rules together took 8 times as long as one, and twice as long to compile (meta-learning, d_y = 5120).
    """
    run = partial(run_one, problem, x1, gaps=gaps_of(checkpoints), estimator=estimator)
    last = lambda key, rule: jax.tree.map(lambda a: a[-1], run(key, rule.numbers()).x)
    each = np.stack([loss([last(key, rule) for rule in rules]) for key in seed_keys(seeds, ROLE_TUNE)], axis=1)
    each = np.where(np.isfinite(each), each, np.inf)
    return [Trial(rule, float(row.mean()), tuple(row.tolist())) for rule, row in zip(rules, each, strict=True)]


def best(trials: Sequence[Trial], kinds: Sequence[str]) -> Rule:
    """The rule of least validation loss among these kinds."""
    return min((trial for trial in trials if trial.rule.kind in kinds), key=lambda trial: trial.loss).rule


def grid(
    T: int, paper: Sequence[float], constant: Sequence[float], adam: Sequence[float], parts: Sequence[int] = (4, 1)
) -> list[Rule]:
    """The paper's rule with t0 = T / part for each of ``parts``, a constant step, and Adam, each with these scales."""
    return [
        *(Rule("paper", scale, max(1, T // part)) for part in parts for scale in paper),
        *(Rule("constant", scale) for scale in constant),
        *(Rule("adam", scale) for scale in adam),
    ]


def finite(value: float) -> float:
    """Infinity where a run diverged is not JSON: the largest float32 stands for it."""
    return float(value) if np.isfinite(value) else float(np.finfo(np.float32).max)
