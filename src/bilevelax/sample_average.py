"""The follower's problem on a fixed set of samples, solved tightly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevelax import trees
from bilevelax.estimate import Cost
from bilevelax.problem import Eta, Problem, PyTree, X, Xi, Y

HALVINGS = 20


class Solution(NamedTuple):
    y: Y
    grad_norm: jax.Array
    iterations: jax.Array
    cost: Cost  # calls on the one eta; of `Problem.averaged(n)`, each stands for n


def solve_cg(product: Callable[[PyTree], PyTree], b: PyTree, *, tol: float, steps: int) -> tuple[PyTree, jax.Array]:
    """(solution of ``product(s) = b`` from s = 0, number of products). Symmetric positive definite only.

    Stops at ``tol`` times the norm of b, or after ``steps`` products.
    """
    first = tree.vdot(b, b)
    goal = tol**2 * first

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        s, residual, direction, gamma, i = carry
        image = product(direction)
        alpha = gamma / tree.vdot(direction, image)
        residual = trees.add_scale(residual, -alpha, image)
        new_gamma = tree.vdot(residual, residual)
        s = trees.add_scale(s, alpha, direction)
        return s, residual, trees.add_scale(residual, new_gamma / gamma, direction), new_gamma, i + 1

    def going_on(carry: tuple[Any, ...]) -> jax.Array:
        *_, gamma, i = carry
        return (gamma > goal) & (i < steps)

    s, *_, i = lax.while_loop(going_on, step, (tree.zeros_like(b), b, b, first, jnp.zeros((), jnp.int32)))
    return s, i


class Trial(NamedTuple):
    """A point, its gradient and the norm of that."""

    y: Y
    slope: Y
    norm: jax.Array


def _shrink(try_step: Callable[[jax.Array], Trial], norm: jax.Array) -> tuple[Trial, jax.Array]:
    """The first of the trials n = 0, 1, ... whose norm is below ``norm`` (else the last), and its n."""

    def too_long(search: tuple[jax.Array, Trial]) -> jax.Array:
        n, trial = search
        return ~(trial.norm < norm) & (n < HALVINGS)

    zero = jnp.zeros((), jnp.int32)
    n, trial = lax.while_loop(too_long, lambda s: (s[0] + 1, try_step(s[0] + 1)), (zero, try_step(zero)))
    return trial, n


def newton_cg(
    problem: Problem,
    x: X,
    xi: Xi,
    eta: Eta,
    y: Y,
    *,
    iterations: int = 50,
    cg_steps: int = 100,
    tol: float | None = None,
) -> Solution:
    """argmin_y g(x, y, eta, xi) for one fixed eta (of `Problem.averaged`: a stack) by damped Newton-CG.

    A step is halved until the gradient shrinks: undamped Newton cycles on newsvendor losses.
    Stops at ``tol`` times the first gradient norm, or where rounding lets nothing shrink.
    """

    def trial_at(y: Y) -> Trial:
        slope = problem.grad_g(x, y, eta, xi)
        return Trial(y, slope, tree.norm(slope))

    start = trial_at(y)
    goal = (tol if tol is not None else 10 * jnp.finfo(start.norm.dtype).eps) * start.norm

    def newton(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        at, _, i, cost = carry
        hessian = lambda r: problem.hess_g(x, at.y, eta, xi, r)
        direction, products = solve_cg(hessian, trees.scale(-1, at.slope), tol=1e-6, steps=cg_steps)
        step = lambda n: trial_at(trees.add_scale(at.y, jnp.exp2(-n.astype(at.norm.dtype)), direction))
        new, halvings = _shrink(step, at.norm)
        better = new.norm < at.norm
        kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, at)
        return kept, better, i + 1, cost + Cost(grad_g=1 + halvings, hess_g=products)

    def going_on(carry: tuple[Any, ...]) -> jax.Array:
        at, better, i, _ = carry
        return better & (at.norm > goal) & (i < iterations)

    zero = jnp.zeros((), jnp.int32)
    cost = dataclasses.replace(jax.tree.map(lambda _: zero, Cost()), grad_g=zero + 1)
    at, _, i, cost = lax.while_loop(going_on, newton, (start, jnp.ones((), bool), zero, cost))
    return Solution(at.y, at.norm, i, cost)
