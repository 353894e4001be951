"""F along with its gradient, for nothing: F is the derivative of c F in c.

An estimator that is asked for the gradient in (x, c) of the problem with c f in place of f gives that in x, unchanged
at c = 1, and its own estimate of F: with the same samples, the same levels, and the bias that its gradients have.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevelax.core.estimate import Estimate, Estimator, State
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y

WithFactor = tuple[X, jax.Array]


def one(x: X) -> WithFactor:
    """(x, c) at c = 1."""
    return x, jnp.ones((), float)


def with_factor(problem: Problem) -> Problem:
    """The problem of (x, c) with c f in place of f; g, and so y*, do not know c."""

    def f(x: WithFactor, y: Y, eta: Eta, xi: Xi) -> jax.Array:
        cost = problem.f(x[0], y, eta, xi)
        return x[1].astype(cost.dtype) * cost

    def of_x(function: Any) -> Any:
        return function and (lambda x, *rest: function(x[0], *rest))

    return problem.replace(
        f=f,
        g=of_x(problem.g),
        init_y=of_x(problem.init_y),
        guess=of_x(problem.guess),
        constraint=problem.constraint and problem.constraint.seeing(x=lambda x: x[0]),
    )


def with_cost(estimator: Estimator) -> Estimator:
    """The same estimator, which is `generic`, with its estimate of F in ``aux``."""

    def estimate(key: Key, problem: Problem, x: X, state: State) -> tuple[Estimate, State]:
        found, state = estimator.estimate(key, with_factor(problem), one(x), state)
        grad, cost = found.grad
        return found._replace(grad=grad, aux={**found.aux, "F": cost}), state

    return estimator._replace(estimate=estimate)
