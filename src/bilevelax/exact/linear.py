"""Linear systems whose matrix is known by its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core import trees
from bilevelax.core.estimate import Count
from bilevelax.core.problem import Y

DENSE = 16  # largest d_y whose Hessian is formed where nothing else is asked for
FEW_ENTRIES = 256  # largest d_y whose diagonal is formed, entry by entry
REFINEMENTS = 4  # times that a solution is corrected by what it leaves, at most

Product = Callable[[Y], Y]


class Inverse(NamedTuple):
    """A matrix that was formed and inverted; ``positive`` is whether all its pivots were."""

    matrix: jax.Array
    positive: jax.Array


class Diagonal(NamedTuple):
    """One over each entry of a matrix's diagonal."""

    entries: Y


class LinearSolver(NamedTuple):
    """Solves product(s) = r: what is kept of the matrix (None: nothing), then a solution. Both count their products."""

    prepare: Callable[[Product, Y], tuple[Any, Count]]  # (product, a vector like r) -> memory
    solve: Callable[[Any, Product, Y], tuple[Y, Count]]  # (memory, product, r) -> s
    keeps: Callable[[int], type | None]  # d_y -> what kind of memory
    tol: float | None = None  # relative error that a solution may have; None: rounding

    def __call__(self, product: Product, r: Y) -> tuple[Y, Count]:
        memory, formed = self.prepare(product, r)
        solution, taken = self.solve(memory, product, r)
        return solution, formed + taken


def default_tol(dtype: Any) -> float:
    """7e-5 in single, 4e-10 in double precision: small, and safely above rounding."""
    return float(float(jnp.finfo(dtype).eps) ** 0.6)


def cg(steps: int = 100, tol: float | None = None, jacobi: bool = False) -> LinearSolver:
    """Conjugate gradients from zero, at most ``steps`` products. It counts them, which those of JAX do not.

    Stops where the residual is ``tol`` times |r| and the last step 10 ``tol`` of the solution in energy: the residual
    alone is blind to all but the steepest coordinates where units differ. A direction without curvature
    ends it; the first one is followed downhill.

    Args:
        jacobi: divide by the matrix's diagonal first, which takes d_y products and the units away; for d_y up to 256.
    """
    require_integer("steps", "cg", steps, 1)
    require_positive("tol", "cg", tol, optional=True)

    def keeps(size: int) -> type | None:
        return Diagonal if jacobi and size <= FEW_ENTRIES else None

    def prepare(product: Product, r: Y) -> tuple[Any, Count]:
        return (Diagonal(_one_over_diagonal(product, r)), tree.size(r)) if keeps(tree.size(r)) else (None, 0)

    def solve(memory: Diagonal | None, product: Product, r: Y) -> tuple[Y, Count]:
        scaled = (lambda a: a) if memory is None else (lambda a: tree.mul(memory.entries, a))
        start = scaled(r)
        first = tree.vdot(r, start)
        square = (default_tol(first.dtype) if tol is None else tol) ** 2
        nothing = (10 * float(jnp.finfo(first.dtype).eps)) ** 2  # of a residual at rounding

        def going_on(carry: tuple[Any, ...]) -> Any:
            *_, left, energy, last, convex, i = carry
            settled = (left <= square * first) & (last <= 100 * square * energy)
            return convex & ~settled & (left > nothing * first) & (i < steps)

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            solution, residual, direction, left, energy, _, _, i = carry
            image = product(direction)
            curvature = tree.vdot(direction, image)
            convex = curvature > 0
            length = jnp.where(convex | (i == 0), left / jnp.abs(curvature), 0)
            solution = trees.add_scale(solution, length, direction)
            residual = trees.add_scale(residual, -length, image)
            z = scaled(residual)
            new = tree.vdot(residual, z)
            last = length * left
            return (
                solution,
                residual,
                trees.add_scale(z, new / left, direction),
                new,
                energy + last,
                last,
                convex,
                i + 1,
            )

        zero, none = jnp.zeros((), jnp.int32), jnp.zeros_like(first)
        carry = (tree.zeros_like(r), r, start, first, none, none, jnp.ones((), bool), zero)
        solution, *_, i = lax.while_loop(going_on, step, carry)
        return solution, i

    return LinearSolver(prepare, solve, keeps, tol)


def _one_over_diagonal(product: Product, like: Y) -> Y:
    """Entry by entry: one product each."""
    flat, unravel = ravel_pytree(like)

    def entry(i: jax.Array, entries: jax.Array) -> jax.Array:
        unit = jnp.zeros_like(flat).at[i].set(1)
        return entries.at[i].set(ravel_pytree(product(unravel(unit)))[0][i])

    diagonal = lax.fori_loop(0, flat.size, entry, jnp.zeros_like(flat))
    return unravel(1 / jnp.where(diagonal > 0, diagonal, 1))


def solve_positive(A: jax.Array, b: jax.Array) -> jax.Array:
    """The solution of A s = b for a small positive definite A, by elimination.

    No pivots are needed there. LAPACK's batched kernels, which `jnp.linalg.solve` calls under
    vmap, wait for other threads of the pool that they run on: as many of them at once as it has
    threads (two, on two cores) wait for ever. This one is also several times faster at d_y = 4.
    """
    return _eliminated(A, b[:, None])[0][:, 0]


def _eliminated(A: jax.Array, B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(the solution of A S = B, the smallest pivot)."""

    def eliminate(k: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, lowest = carry
        pivot = rows[k] / rows[k, k]
        return rows - jnp.outer(rows[:, k].at[k].add(-1), pivot), jnp.minimum(lowest, rows[k, k])

    start = jnp.concatenate([A, B], axis=1), jnp.full((), jnp.inf, A.dtype)
    rows, lowest = lax.fori_loop(0, len(A), eliminate, start)
    return rows[:, len(A) :], lowest


def inverse_of(A: jax.Array) -> Inverse:
    """The inverse of a small positive definite A, scaled first to a diagonal of ones: units do not matter."""
    diagonal = jnp.diagonal(A)
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1))
    both = jnp.outer(scale, scale)
    inverse, lowest = _eliminated(both * A, jnp.eye(len(A), dtype=A.dtype))
    return Inverse(both * inverse, lowest > 0)


def direct() -> LinearSolver:
    """Form the matrix with one product for each coordinate and invert it: for small d_y."""

    def prepare(product: Product, r: Y) -> tuple[Inverse, Count]:
        flat, unravel = ravel_pytree(r)
        columns = jax.vmap(lambda e: ravel_pytree(product(unravel(e)))[0])(jnp.eye(flat.size, dtype=flat.dtype))
        return inverse_of(columns.T), flat.size

    def solve(memory: Inverse, product: Product, r: Y) -> tuple[Y, Count]:
        flat, unravel = ravel_pytree(r)
        return unravel(memory.matrix @ flat), 0

    return LinearSolver(prepare, solve, lambda size: Inverse)


def direct_or_cg(steps: int = 100, tol: float | None = None, dense: int = DENSE) -> LinearSolver:
    """`direct` for d_y up to 16, or up to ``dense``, `cg` above."""
    few, many = direct(), cg(steps, tol)
    by_size = lambda size: few if size <= dense else many
    return LinearSolver(
        lambda product, r: by_size(tree.size(r)).prepare(product, r),
        lambda memory, product, r: by_size(tree.size(r)).solve(memory, product, r),
        lambda size: by_size(size).keeps(size),
        tol,
    )


def refined(linear: LinearSolver, tol: float | None = None) -> LinearSolver:
    """The same, whose solutions are corrected by what they leave, until a correction is small or does not shrink.

    Small: ``tol`` of the solution, in energy and in length. Rounding of a formed inverse, one that belongs to a
    matrix nearby, and what is lost by long runs of CG are mended so.
    """

    def solve(memory: Any, product: Product, r: Y) -> tuple[Y, Count]:
        first, taken = linear.solve(memory, product, r)
        size = lambda s, r: (tree.vdot(s, r), tree.norm(s, squared=True))
        square = (default_tol(tree.norm(r).dtype) if tol is None else tol) ** 2

        def going_on(carry: tuple[Any, ...]) -> Any:
            _, energy, length, better, i, _ = carry
            return better & ((energy > square * whole[0]) | (length > square * whole[1])) & (i < REFINEMENTS)

        def correct(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            solution, energy, _, _, i, taken = carry
            left = tree.sub(r, product(solution))
            correction, more = linear.solve(memory, product, left)
            new = size(correction, left)
            better = new[0] < energy
            solution = tree.where(better, tree.add(solution, correction), solution)
            return solution, *new, better, i + 1, taken + more + 1

        whole = size(first, r)
        carry = (first, *whole, jnp.ones((), bool), jnp.zeros((), jnp.int32), jnp.asarray(taken, jnp.int32))
        solution, *_, taken = lax.while_loop(going_on, correct, carry)
        return solution, taken

    return linear._replace(solve=solve, tol=tol)
