"""What a gradient estimator is: `Estimator`, its report `Estimate` and the oracle calls `Cost`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random

from bilevelax.problem import Key, Problem, PyTree, X, Xi, Y

Count = Any  # an int, or a traced int32
State = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cost:
    """Oracle calls of one estimate, in the units of Table 1. Exact."""

    xi: Count = 0
    eta: Count = 0
    grad_f: Count = 0
    grad_g: Count = 0
    hess_g: Count = 0
    cross_g: Count = 0

    def __add__(self, other: Cost) -> Cost:
        return jax.tree.map(lambda a, b: a + b, self, other)

    def times(self, n: Count) -> Cost:
        """n times each call."""
        return jax.tree.map(lambda a: n * a, self)

    def at_points(self, n: Count) -> Cost:
        """The same draws used at n points: n times the derivatives, the samples once."""
        return dataclasses.replace(self.times(n), xi=self.xi, eta=self.eta)

    def asdict(self) -> dict[str, Count]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class Estimate(NamedTuple):
    """A gradient estimate: ``grad`` has the structure, shapes and dtypes of x."""

    grad: PyTree
    cost: Cost
    aux: dict[str, Any]  # recorded, never read by the loop
    visits: tuple[Xi, Y] | tuple[()] = ()  # contexts met and the answers found there, stacked; for `warm_started`


def visit(xi: Xi, y: Y) -> tuple[Xi, Y]:
    """One context and the answer found there, as `Estimate.visits` wants it."""
    return jax.tree.map(lambda a: jnp.asarray(a)[None], (xi, y))


class Levels(NamedTuple):
    """What `minibatch` needs to stratify a multilevel estimator.

    ``estimate`` draws level k with ``probabilities[k - first]`` by ``draw`` and returns
    ``at_level(k, key, problem, x)``. ``at_levels(known, rest, keys, problem, x)`` returns the
    stacked estimates of many keys: of the levels ``known`` at compile time, deepest first, and
    then of the traced levels ``rest``.
    """

    first: int
    probabilities: tuple[float, ...]
    draw: Callable[[Key], jax.Array]
    at_level: Callable[[Count, Key, Problem, X], Estimate]
    at_levels: Callable[[tuple[int, ...], jax.Array, Key, Problem, X], Estimate]


class Estimator(NamedTuple):
    """``init(problem, x) -> state``; ``estimate(key, problem, x, state) -> (Estimate, state)``."""

    init: Callable[[Problem, X], State]
    estimate: Callable[[Key, Problem, X, State], tuple[Estimate, State]]
    levels: Levels | None = None
    settings: Any = None  # what it was built with, hashable; read by diagnostics, never by the loop
    contexts: Callable[[Key], Key] | None = None  # key of an estimate -> the stacked keys that problem.context will get
    batch: Any = None  # what `minibatch` was given, for those who spread its estimates over devices


def stateless(
    estimate: Callable[[Key, Problem, X], Estimate],
    levels: Levels | None = None,
    settings: Any = None,
    contexts: Callable[[Key], Key] | None = None,
) -> Estimator:
    """The estimator that remembers nothing between calls."""
    return Estimator(
        init=lambda problem, x: (),
        estimate=lambda key, problem, x, state: (estimate(key, problem, x), state),
        levels=levels,
        settings=settings,
        contexts=contexts,
    )


def first_of_split(n: int) -> Callable[[Key], Key]:
    """``contexts`` of an estimator with one context, whose key is the first of ``random.split(key, n)``."""
    return lambda key: random.split(key, n)[:1]
