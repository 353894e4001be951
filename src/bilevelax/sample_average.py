"""The follower's problem on a fixed set of samples, solved tightly."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevelax import trees
from bilevelax.problem import Eta, Problem, X, Xi, Y

HALVINGS = 20


class Solution(NamedTuple):
    y: Y
    grad_norm: jax.Array
    iterations: jax.Array


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
    grad = lambda y: problem.grad_g(x, y, eta, xi)
    start = grad(y)
    first = tree.norm(start)
    goal = (tol if tol is not None else 10 * jnp.finfo(first.dtype).eps) * first

    def newton(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        y, slope, norm, _, i = carry
        hessian = lambda r: problem.hess_g(x, y, eta, xi, r)
        direction, _ = jax.scipy.sparse.linalg.cg(hessian, trees.scale(-1, slope), tol=1e-6, maxiter=cg_steps)

        def try_step(n: jax.Array) -> tuple[Y, Y, jax.Array]:
            new = trees.add_scale(y, jnp.exp2(-n.astype(norm.dtype)), direction)
            new_slope = grad(new)
            return new, new_slope, tree.norm(new_slope)

        def too_long(search: tuple[Any, ...]) -> jax.Array:
            n, (_, _, new_norm) = search
            return ~(new_norm < norm) & (n < HALVINGS)

        zero = jnp.zeros((), jnp.int32)
        _, (new, new_slope, new_norm) = lax.while_loop(
            too_long, lambda search: (search[0] + 1, try_step(search[0] + 1)), (zero, try_step(zero))
        )
        better = new_norm < norm
        keep = lambda a, b: jax.tree.map(lambda a, b: jnp.where(better, a, b), a, b)
        return keep(new, y), keep(new_slope, slope), keep(new_norm, norm), better, i + 1

    def going_on(carry: tuple[Any, ...]) -> jax.Array:
        *_, norm, better, i = carry
        return better & (norm > goal) & (i < iterations)

    y, _, norm, _, i = lax.while_loop(going_on, newton, (y, start, first, jnp.ones((), bool), jnp.zeros((), jnp.int32)))
    return Solution(y, norm, i)
