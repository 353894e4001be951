"""What a gradient estimator is: `Estimator`, its report `Estimate` and the oracle calls `Cost`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random

from bilevelax.core.problem import Key, Problem, PyTree, X, Xi, Y

if TYPE_CHECKING:
    from bilevelax.core.levels import Levels

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
        return Cost(*(a + b for a, b in zip(self.counts(), other.counts(), strict=True)))

    def times(self, n: Count) -> Cost:
        """n times each call."""
        return Cost(*(n * a for a in self.counts()))

    def at_points(self, n: Count) -> Cost:
        """The same draws used at n points: n times the derivatives, the samples once."""
        return dataclasses.replace(self.times(n), xi=self.xi, eta=self.eta)

    def counts(self) -> tuple[Count, ...]:
        """All of them, in the order of the fields."""
        return tuple(self.asdict().values())

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
    stacked: tuple[Xi, Y] = jax.tree.map(lambda a: jnp.asarray(a)[None], (xi, y))
    return stacked


class Estimator(NamedTuple):
    """``init(problem, x) -> state``; ``estimate(key, problem, x, state) -> (Estimate, state)``.

    The rest is for those who build on it, `minibatch` and the like: ``levels``, what a lane does at a level;
    ``settings``, hashable, what it was made of, e.g. a `DoubleLoop`, a `Batch` or a `Warm`; ``contexts``, from the key
    of an estimate to the stacked keys that `Problem.context` will get; ``generic``, whether it knows f, g and x through
    the problem alone, so that it may be asked about another one: `minimize` then has F told along with its gradient.
    """

    init: Callable[[Problem, X], State]
    estimate: Callable[[Key, Problem, X, State], tuple[Estimate, State]]
    levels: Levels | None = None
    settings: Any = None
    contexts: Callable[[Key], Key] | None = None
    generic: bool = False

    def __call__(self, key: Key, problem: Problem, x: X, state: State = None) -> tuple[Estimate, State]:
        """By hand: (Estimate, state), compiled and checked; without a state, from the first one."""
        from bilevelax.run.by_hand import call  # that part stands on this one

        return call(self, key, problem, x, state)

    def keeps_state(self, problem: Problem, x: X) -> bool:
        """Whether something moves from call to call."""
        return bool(jax.tree.leaves(jax.eval_shape(self.init, problem, x)))


def stateless(
    estimate: Callable[[Key, Problem, X], Estimate],
    levels: Levels | None = None,
    settings: Any = None,
    contexts: Callable[[Key], Key] | None = None,
    generic: bool = False,
) -> Estimator:
    """The estimator that remembers nothing between calls."""
    return Estimator(
        init=lambda problem, x: (),
        estimate=lambda key, problem, x, state: (estimate(key, problem, x), state),
        levels=levels,
        settings=settings,
        contexts=contexts,
        generic=generic,
    )


def innermost(estimator: Estimator) -> Estimator:
    """The estimator that others were wrapped around."""
    inner = getattr(estimator.settings, "estimator", None)
    return estimator if inner is None else innermost(inner)


def lifted(estimator: Estimator, change: Callable[[Estimator], Estimator]) -> Estimator | None:
    """``change`` applied inside an estimator that remembers, which goes around it again; None where nothing does."""
    again: Callable[[Estimator], Estimator] | None = getattr(estimator.settings, "again", None)
    return None if again is None else again(change(estimator.settings.estimator))


def first_of_split(n: int) -> Callable[[Key], Key]:
    """``contexts`` of an estimator with one context, whose key is the first of ``random.split(key, n)``."""
    return lambda key: random.split(key, n)[:1]
