"""The follower's answer on a set: directly on a polyhedron, by nearest points on every other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr

from bilevelax.core.estimate import Count
from bilevelax.core.problem import Y
from bilevelax.exact.constraints.facets import solve_held
from bilevelax.exact.constraints.polyhedron import Polyhedron
from bilevelax.exact.constraints.semismooth import Inside, Where, semismooth_newton
from bilevelax.exact.groups import in_groups
from bilevelax.exact.linear import Product
from bilevelax.exact.newton import Solution


def lane_of(inside: Inside | None, y: Y) -> int | None:
    """Bytes that a follower's solve works with, where groups of them pay; else None."""
    if inside is None or not isinstance(inside.constraint, Polyhedron):
        return None
    return inside.constraint.bytes(inside.x, inside.xi, y)


def solve_inside(
    grad: Callable[[Y], Y], hessian: Callable[[Y], Product], inside: Inside, y: Y, **settings: Any
) -> Solution:
    """argmin g on the set, from y; ``settings`` are those of `semismooth_newton`."""
    lane = lane_of(inside, y)
    if lane is None:
        return semismooth_newton(grad, hessian, inside, y, **settings)
    return in_groups(lambda: on_polyhedron(grad, hessian, inside, y), lane)


def on_polyhedron(grad: Callable[[Y], Y], hessian: Callable[[Y], Product], inside: Inside, y: Y) -> Solution:
    """argmin g on A y <= b, with the Hessian of g as a matrix; not finite where no y is feasible."""
    flat, unravel = ravel_pytree(y)
    identity = jnp.eye(flat.size, dtype=flat.dtype)

    def matrix(y: jax.Array) -> jax.Array:
        product = hessian(unravel(y))
        return jax.vmap(lambda e: ravel_pytree(product(unravel(e)))[0])(identity)

    constraint = inside.constraint
    assert isinstance(constraint, Polyhedron)
    rows = constraint.at(inside.x, inside.xi, y)
    curved = depends(matrix, flat)
    constant = None if curved else matrix(flat)
    formed = matrix if constant is None else lambda y: constant
    found = constraint.minimise(lambda y: ravel_pytree(grad(unravel(y)))[0], formed, rows, flat)
    answer = unravel(jnp.where(found.feasible, found.y, jnp.nan))
    products = flat.size * (found.iterations if curved else jnp.ones_like(found.iterations))
    one = jnp.ones((), flat.dtype)
    counts = found.iterations, found.gradients, products
    solved = found.solved & found.feasible
    return Solution(answer, found.gap, found.gap, solved, *counts, where=Where(found.face, one, found.stiff))


def depends(function: Callable[[jax.Array], jax.Array], y: jax.Array) -> bool:
    """Whether a function's program uses y: the Hessian's does not where g is quadratic in y."""
    program = jax.make_jaxpr(function)(y).jaxpr
    _, used = dce_jaxpr(program, [True] * len(program.outvars))
    return used[0]


def adjoint_on_rows(where: Where, hessian: Product, grad_y: Y) -> tuple[Y, Count]:
    """(r, products): W r + J' nu = grad_y and J r = 0 on a polyhedron, with the factors that its answer left."""
    right, unravel = ravel_pytree(grad_y)
    B = where.stiff.barrier

    def W(d: jax.Array) -> jax.Array:
        curved = ravel_pytree(hessian(unravel(d)))[0]
        return curved if B is None else curved + B.T @ (B @ d)

    found = solve_held(where.face.J, where.stiff, W, right)
    return unravel(found.d), found.passes
