"""Danskin's gradient of a min-max problem: the follower's best answers by gradient steps, then grad_1 f there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.base.errors import require_integer, require_positive, require_unconstrained
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Count, Estimate, Estimator, stateless
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y

Weighted = tuple[Eta, jax.Array]  # outcomes of a context and their weights


class Envelope(NamedTuple):
    """What it was made of; ``light``: nothing is drawn for a context, and answers come from gradient steps."""

    batch: int
    light: bool


Steps = int | Callable[[Problem], Any]  # a number, or what tells it of a problem


def outcomes_of(key: Key, problem: Problem, xi: Xi, n: int | str) -> Weighted:
    """n draws of eta, equally likely, or every outcome of the context."""
    if n == "all":
        return problem.outcomes(xi)
    return problem.conditionals(key, xi, int(n)), jnp.full(int(n), 1 / int(n), float)


def summed(problem: Problem) -> Problem:
    """The same problem of stacked y, eta and xi, whose losses are the sums over the stack."""

    def over(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda x, y, eta, xi: jnp.sum(jax.vmap(loss, in_axes=(None, 0, 0, 0))(x, y, eta, xi))

    return dataclasses.replace(problem, f=over(problem.f), g=over(problem.g))


def step_size_of(problem: Problem, j: Count) -> Any:
    """2 / (mu_g + L_g1) where the problem knows both, else 1, 2/3, 2/4, ... as for a curvature of about one."""
    if problem.mu_g is None or problem.L_g1 is None:
        return 2 / (j + 2)
    return 2 / (problem.mu_g + problem.L_g1)


def best_answers(problem: Problem, x: X, xi: Xi, eta: Weighted, steps: Count, step_size: float | None = None) -> Y:
    """y at stacked contexts: gradient steps on E g, down from y_1^0, all contexts in one gradient."""
    whole = summed(problem.weighted())

    def step(j: Count, y: Y) -> Y:
        size = step_size_of(problem, j) if step_size is None else step_size
        return trees.add_scale(y, -size, whole.grad_g(x, y, eta, xi))

    return lax.fori_loop(0, steps, step, jax.vmap(lambda xi: problem.start(x, xi))(xi))


def envelope(batch: int = 1, steps: Steps = 16, n: int | str = 32, step_size: float | None = None) -> Estimator:
    r"""The envelope theorem (Danskin): grad_1 f at the follower's answer, no implicit term.

    .. math::
        \frac1B \sum_i \nabla_1 \bar f(x, y_i; \xi_i), \quad
        y_i \approx \arg\min_y \bar g(x, y; \xi_i), \qquad \bar f, \bar g \text{ means over n outcomes of } \xi_i

    For min-max problems, where f = -g up to a factor, or wherever the mean of grad_2 f vanishes at y*: there the
    implicit term of eq. (6) is zero and needs no Hessian. Elsewhere it leaves that term out, and is biased.
    All contexts enter one loss, so that a gradient is a few large products instead of one gradient a context:
    prefer ``batch`` to `minibatch`.

    Args:
        batch: contexts.
        steps: gradient steps to their answers; or a function of the problem that tells them from its data, where one
            program is to serve followers that move and followers that do not.
        n: samples of each context, or ``"all"`` for every outcome of a problem with ``support``.
        step_size: by default 2 / (mu_g + L_g1) where the problem knows both, else 1, 2/3, 2/4, ..., which fits a g
            whose curvature in y is about one.
    """
    require_integer("batch", "envelope", batch, 1)
    if not callable(steps):
        require_integer("steps", "envelope", steps, 0)
    if isinstance(n, str) and n != "all":
        raise ValueError(f"`n` of envelope must be an integer >= 1, or 'all' for every outcome. Got {n!r}.")
    if not isinstance(n, str):
        require_integer("n", "envelope", n, 1)
    require_positive("step_size", "envelope", step_size, optional=True)

    def addresses(key: Key, start: int) -> Key:
        return jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(start, start + batch, dtype=jnp.int32))

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        require_unconstrained("envelope", problem)
        xi = jax.vmap(problem.context)(addresses(key, 0))
        eta = jax.vmap(lambda key, xi: outcomes_of(key, problem, xi, n))(addresses(key, batch), xi)
        taken = steps(problem) if callable(steps) else steps
        y = best_answers(problem, x, xi, eta, taken, step_size)
        grad = trees.scale(1 / batch, summed(problem.weighted()).grad_f(x, y, eta, xi)[0])
        drawn = batch * eta[1].shape[1]
        return Estimate(grad, Cost(xi=batch, eta=drawn, grad_f=drawn, grad_g=taken * drawn), {}, (xi, y))

    return stateless(
        estimate, settings=Envelope(batch, n == "all"), contexts=lambda key: addresses(key, 0), generic=True
    )
