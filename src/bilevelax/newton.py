"""Damped Newton for a smooth strongly convex function, with the linear solver injected.

Every loop stops by itself: vectorised over contexts, the lanes stop together and each counts only
the calls that it needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax import trees
from bilevelax.errors import require_integer, require_positive
from bilevelax.estimate import Count
from bilevelax.problem import Y

HALVINGS = 20
DENSE = 16  # largest d_y whose Hessian is formed where nothing else is asked for

Product = Callable[[Y], Y]
# (product, r) -> (the solution of product(s) = r, how many products it took)
LinearSolver = Callable[[Product, Y], tuple[Y, Count]]


class Solution(NamedTuple):
    """A minimiser, and what it took."""

    y: Y
    grad_norm: jax.Array
    first: jax.Array  # the gradient norm that the tolerance is relative to
    goal: jax.Array  # the gradient norm that was asked for
    iterations: jax.Array
    gradients: jax.Array
    products: jax.Array


def default_tol(dtype: Any) -> float:
    """7e-5 in single, 4e-10 in double precision: small, and safely above rounding."""
    return float(jnp.finfo(dtype).eps) ** 0.6


def cg(steps: int = 100, tol: float | None = None) -> LinearSolver:
    """Conjugate gradients from zero until the residual is ``tol`` times |r|, at most ``steps`` products.

    It counts its products, which those of JAX do not, and does not spend one on a zero start.
    """
    require_integer("steps", "cg", steps, 1)
    require_positive("tol", "cg", tol, optional=True)

    def solve(product: Product, r: Y) -> tuple[Y, Count]:
        first = tree.norm(r, squared=True)
        goal = (default_tol(first.dtype) if tol is None else tol) ** 2 * first

        def going_on(carry: tuple[Any, ...]) -> jax.Array:
            *_, square, i = carry
            return (square > goal) & (i < steps)

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            solution, residual, direction, square, i = carry
            image = product(direction)
            length = square / tree.vdot(direction, image)
            solution = trees.add_scale(solution, length, direction)
            residual = trees.add_scale(residual, -length, image)
            new = tree.norm(residual, squared=True)
            return solution, residual, trees.add_scale(residual, new / square, direction), new, i + 1

        zero = jnp.zeros((), jnp.int32)
        solution, *_, i = lax.while_loop(going_on, step, (tree.zeros_like(r), r, r, first, zero))
        return solution, i

    return solve


def solve_positive(A: jax.Array, b: jax.Array) -> jax.Array:
    """The solution of A s = b for a small positive definite A, by elimination.

    No pivots are needed there. LAPACK's batched kernels, which `jnp.linalg.solve` calls under
    vmap, wait for other threads of the pool that they run on: as many of them at once as it has
    threads (two, on two cores) wait for ever. This one is also several times faster at d_y = 4.
    """
    rows = jnp.concatenate([A, b[:, None]], axis=1)

    def eliminate(k: jax.Array, rows: jax.Array) -> jax.Array:
        pivot = rows[k] / rows[k, k]
        return rows - jnp.outer(rows[:, k].at[k].add(-1), pivot)

    return lax.fori_loop(0, len(b), eliminate, rows)[:, -1]


def direct() -> LinearSolver:
    """Form the matrix with one product for each coordinate and solve: for small d_y."""

    def solve(product: Product, r: Y) -> tuple[Y, Count]:
        flat, unravel = ravel_pytree(r)
        columns = jax.vmap(lambda e: ravel_pytree(product(unravel(e)))[0])(jnp.eye(flat.size, dtype=flat.dtype))
        return unravel(solve_positive(columns.T, flat)), jnp.asarray(flat.size, jnp.int32)

    return solve


def direct_or_cg(steps: int = 100, tol: float | None = None) -> LinearSolver:
    """`direct` for d_y up to 16, `cg` above."""
    by_size = direct(), cg(steps, tol)

    def solve(product: Product, r: Y) -> tuple[Y, Count]:
        return by_size[tree.size(r) > DENSE](product, r)

    return solve


def newton(
    grad: Callable[[Y], Y],
    hessian: Callable[[Y], Product],
    y: Y,
    first: Any = None,
    slope: Y = None,
    *,
    iterations: int,
    linear: LinearSolver,
    tol: float | None = None,
) -> Solution:
    """The zero of ``grad`` by damped Newton; ``hessian(y)`` multiplies by its derivative at y.

    A step is halved until the gradient shrinks: undamped Newton cycles on newsvendor losses.
    Stops at the gradient norm ``tol`` times ``first``, by default that at y, or where rounding lets
    nothing shrink. ``slope`` is the gradient at y where it is known; it is not counted again.
    """
    start = grad(y) if slope is None else slope
    length = tree.norm(start)
    first = length if first is None else first
    goal = (default_tol(length.dtype) if tol is None else tol) * first

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        y, slope, norm, _, i, gradients, products = carry
        direction, taken = linear(hessian(y), trees.scale(-1, slope))

        def try_step(search: tuple[Any, ...]) -> tuple[Any, ...]:
            n, *_ = search
            new = trees.add_scale(y, jnp.exp2(-n.astype(norm.dtype)), direction)
            new_slope = grad(new)
            return n + 1, new, new_slope, tree.norm(new_slope)

        def too_long(search: tuple[Any, ...]) -> jax.Array:
            n, *_, new_norm = search
            return ~(new_norm < norm) & (n <= HALVINGS)

        untried = (jnp.zeros((), jnp.int32), y, slope, norm)  # not shorter than itself: at least one step is tried
        n, new, new_slope, new_norm = lax.while_loop(too_long, try_step, untried)
        better = new_norm < norm
        keep = lambda a, b: jax.tree.map(lambda a, b: jnp.where(better, a, b), a, b)
        new, new_slope, new_norm = keep((new, new_slope, new_norm), (y, slope, norm))
        return new, new_slope, new_norm, better, i + 1, gradients + n, products + taken

    def going_on(carry: tuple[Any, ...]) -> jax.Array:
        _, _, norm, better, i, *_ = carry
        return better & (norm > goal) & (i < iterations)

    zero, taken = jnp.zeros((), jnp.int32), jnp.asarray(slope is None, jnp.int32)
    carry = (y, start, length, jnp.ones((), bool), zero, taken, zero)
    y, _, norm, _, i, gradients, products = lax.while_loop(going_on, step, carry)
    return Solution(y, norm, first, goal, i, gradients, products)
