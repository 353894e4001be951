"""A monitor of the follower's curvature: is the lower level still strongly convex?"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import eigh_tridiagonal

from bilevelax.compiling import jit_once
from bilevelax.errors import require_integer, require_key
from bilevelax.problem import Key, Problem, X
from bilevelax.validate import as_arrays, check_shapes


class Curvature(NamedTuple):
    """Extreme eigenvalues of the Hessian of E g in y, over contexts."""

    smallest: float
    largest: float


def extreme_eigenvalues(product: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int) -> jax.Array:
    """(smallest, largest) Ritz value of a symmetric map after Lanczos steps from ``start``.

    Full reorthogonalisation; Ritz values lie within the true range, so the extremes are never
    overstated. Where the Krylov space is exhausted, the rest of the tridiagonal matrix is
    filled with the first Rayleigh quotient, which lies inside the range too.
    """
    steps = min(steps, start.size)
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
    alpha = jnp.where(jnp.any(basis != 0, axis=1), alpha, alpha[0])
    return eigh_tridiagonal(alpha, beta[:-1], eigvals_only=True)[jnp.array([0, -1])]


@jit_once(static_argnames=("contexts", "samples", "steps", "points"))
def _extremes(key: Key, problem: Problem, x: X, contexts: int, samples: int, steps: int, points: int) -> jax.Array:
    average = problem.averaged(samples) if problem.support is None else problem.weighted()
    every_context = problem.n_contexts is not None and problem.n_contexts <= contexts

    def one(i: jax.Array) -> jax.Array:
        key_xi, key_eta, key_r = random.split(random.fold_in(key, i), 3)
        xi = problem.nth_context(i) if every_context else problem.context(key_xi)
        eta = average.conditional(key_eta, xi) if problem.support is None else problem.outcomes(xi)
        flat, unravel = ravel_pytree(problem.start(x, xi))

        def look(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            product = lambda r: ravel_pytree(average.hess_g(x, unravel(y), eta, xi, unravel(r)))[0]
            ends = extreme_eigenvalues(product, random.normal(key_r, y.shape, y.dtype), steps)
            slope = ravel_pytree(average.grad_g(x, unravel(y), eta, xi))[0]
            return y - slope / jnp.maximum(jnp.abs(ends).max(), jnp.finfo(y.dtype).tiny), ends

        return lax.scan(look, flat, length=points)[1]

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
