"""A monitor of the follower's curvature: is the lower level still strongly convex?"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import eigh_tridiagonal

from bilevelax.base.compiling import jit_once
from bilevelax.base.errors import require_integer, require_key
from bilevelax.core import trees
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.exact.draws import samples_of
from bilevelax.exact.linear import Product
from bilevelax.exact.sample_average import of_stack_in_blocks
from bilevelax.problems.validate import as_arrays, check_shapes

LANCZOS_STEPS = 32  # where nothing else is said: exact for d_y up to that


class Curvature(NamedTuple):
    """Extreme eigenvalues of the Hessian of E g in y, over contexts."""

    smallest: float
    largest: float


def lanczos(product: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
    """Diagonal and off-diagonal of the tridiagonal matrix of a symmetric map after so many steps from ``start``.

    Full reorthogonalisation; its eigenvalues, the Ritz values, lie within the true range, so the extremes
    are never overstated. Where the Krylov space is exhausted, the rest of the matrix is filled with the
    first Rayleigh quotient, which lies inside the range too.
    """
    tiny = 100 * jnp.finfo(start.dtype).eps

    def step(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        basis, v, alpha, beta = carry
        basis = basis.at[i].set(v)
        image = product(v)
        alpha = alpha.at[i].set(v @ image)
        rest = image
        for _ in range(2):  # once leaves rounding behind
            rest = rest - basis.T @ (basis @ rest)
        length = jnp.linalg.norm(rest)
        going = length > tiny * jnp.maximum(jnp.linalg.norm(image), jnp.finfo(start.dtype).tiny)
        beta = beta.at[i].set(jnp.where(going, length, 0.0))
        return basis, jnp.where(going, rest / jnp.where(going, length, 1.0), 0.0), alpha, beta

    zeros = jnp.zeros(steps, start.dtype)
    first = (jnp.zeros((steps, start.size), start.dtype), start / jnp.linalg.norm(start), zeros, zeros)
    basis, _, alpha, beta = lax.fori_loop(0, steps, step, first)
    return jnp.where(jnp.any(basis != 0, axis=1), alpha, alpha[0]), beta[:-1]


def extreme_eigenvalues(product: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int) -> jax.Array:
    """(smallest, largest) Ritz value of a symmetric map after Lanczos steps from ``start``."""
    tridiagonal = lanczos(product, start, min(steps, start.size))
    return eigh_tridiagonal(*tridiagonal, eigvals_only=True)[jnp.array([0, -1])]


def flat_product(hessian: Product, y: Y) -> tuple[Callable[[jax.Array], jax.Array], jax.Array]:
    """A product with trees like y as one with vectors, and y as a vector."""
    flat, unravel = ravel_pytree(y)
    return lambda r: ravel_pytree(hessian(unravel(r)))[0], flat


def extreme_curvatures(hessian: Product, y: Y, key: Key, steps: int) -> jax.Array:
    """(smallest, largest) eigenvalue of a Hessian at y, given as a product with trees like y, by `extreme_eigenvalues`.

    Inside a program every spectrum is measured here; with `ritz_matrix` the host does the last step.
    """
    product, flat = flat_product(hessian, y)
    return extreme_eigenvalues(product, random.normal(key, flat.shape, flat.dtype), steps)


def ritz_matrix(hessian: Product, y: Y, key: Key, steps: int) -> jax.Array:
    """A small symmetric matrix with the extreme eigenvalues of a Hessian at y, for the host to find.

    The Hessian itself where d_y is at most ``steps``, else the tridiagonal one of that many Lanczos steps.
    Eigenvalues found inside a program would take longer to compile than all the rest.
    """
    product, flat = flat_product(hessian, y)
    if flat.size <= steps:
        return jax.vmap(product)(jnp.eye(flat.size, dtype=flat.dtype))
    alpha, beta = lanczos(product, random.normal(key, flat.shape, flat.dtype), steps)
    return jnp.diag(alpha) + jnp.diag(beta, 1) + jnp.diag(beta, -1)


@jit_once(static_argnames=("contexts", "samples", "steps", "points"))
def _extremes(key: Key, problem: Problem, x: X, contexts: int, samples: int, steps: int, points: int) -> jax.Array:
    every_context = problem.n_contexts is not None and problem.n_contexts <= contexts

    def one(i: jax.Array) -> jax.Array:
        key_xi, key_eta, key_r = random.split(random.fold_in(key, i), 3)
        xi = problem.nth_context(i) if every_context else problem.context(key_xi)
        average = of_stack_in_blocks(problem, x, xi, *samples_of(key_eta, problem, xi, samples))

        def look(y: Y, _: None) -> tuple[Y, jax.Array]:
            ends = extreme_curvatures(average.hess_g(y), y, key_r, steps)
            largest = jnp.maximum(jnp.abs(ends).max(), jnp.finfo(ends.dtype).tiny)
            return problem.land(x, trees.add_scale(y, -1 / largest, average.grad_g(y)), xi)[0], ends

        return lax.scan(look, problem.start(x, xi), length=points)[1]

    n = problem.n_contexts if every_context else contexts
    ends = jax.vmap(one)(jnp.arange(n, dtype=jnp.int32))
    return jnp.stack([ends.min(), ends.max()])


def curvature(
    problem: Problem, x: X, *, key: Key, contexts: int = 64, samples: int = 64, steps: int = 30, points: int = 3
) -> Curvature:
    """Extreme eigenvalues of the Hessian of E g in y, over contexts and over the follower's first gradient steps.

    A smallest value <= 0 means that the lower level is not strongly convex at this x, and no
    guarantee of a bilevel method holds there. Lanczos on Hessian-vector products of the mean of
    g: any d_y, never a matrix.

    Args:
        contexts: how many contexts are looked at; all of them where there are no more.
        samples: draws of eta averaged in each context; all outcomes where the problem has ``support``.
        steps: Lanczos steps; the result is exact (up to rounding) from d_y on.
        points: y_1^0 and this many points less one after it, by steps of one over the largest eigenvalue.
    """
    require_key("curvature", key)
    for name, value in (("contexts", contexts), ("samples", samples), ("steps", steps), ("points", points)):
        require_integer(name, "curvature", value, 1)
    x = as_arrays("x", "curvature", x)
    check_shapes(problem, x)
    smallest, largest = _extremes(key, problem, x, contexts, samples, steps, points)
    return Curvature(float(smallest), float(largest))
