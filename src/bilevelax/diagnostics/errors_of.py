"""The errors of single parts of a gradient estimate, each measured with the other parts exact."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax import trees
from bilevelax.compiling import jit_once
from bilevelax.diagnostics.reference import flat_rows, samples_of
from bilevelax.inverse import InverseHessian
from bilevelax.lower import LowerSolver
from bilevelax.newton import direct_or_cg
from bilevelax.problem import Key, Problem, PyTree, X, Xi, Y
from bilevelax.sample_average import Average, newton_solver, of_stack, respond_on

REPEATS = 128  # in each context
SAMPLES = 256  # behind the exact parts
FEW = 8  # contexts behind finite differences


class LowerErrors(NamedTuple):
    """What a lower solver leaves: in the gradient, and in y (root mean square)."""

    grads: np.ndarray
    error: float
    start: float


def _each(stacked: tuple[PyTree, ...]) -> int:
    return len(jax.tree.leaves(stacked)[0])


def _average(key: Key, problem: Problem, x: X, xi: Xi) -> Average:
    etas, weights = samples_of(key, problem, xi, SAMPLES)
    return of_stack(problem, x, xi, etas, weights, len(weights))


def _square(tree_: PyTree) -> jax.Array:
    return tree.norm(tree_, squared=True)


@jit_once(static_argnames=("lower", "K"))
def _lower_errors(
    key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y, lower: LowerSolver, K: int
) -> tuple[X, jax.Array, jax.Array]:
    linear = direct_or_cg()

    def one(lane: tuple[jax.Array, Xi, Y]) -> tuple[X, jax.Array, jax.Array]:
        i, xi, best = lane
        key_eta, key_y = random.split(random.fold_in(key, i))
        average = _average(key_eta, problem, x, xi)

        def at(y: Y) -> X:
            grad_x, grad_y = average.grad_f(y)
            return tree.sub(grad_x, average.cross_g(y, linear(average.hess_g(y), grad_y)[0]))

        def run(j: jax.Array) -> tuple[X, jax.Array]:
            y = lower(random.fold_in(key_y, j), problem, x, xi, K).last
            return tree.sub(at(y), exact), _square(tree.sub(y, best))

        exact = at(best)
        grads, errors = jax.vmap(run)(jnp.arange(REPEATS, dtype=jnp.int32))
        return grads, jnp.mean(errors), _square(tree.sub(problem.start(x, xi), best))

    return lax.map(one, (jnp.arange(_each((y_star,)), dtype=jnp.int32), contexts, y_star))


def lower_errors(
    key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y, *, lower: LowerSolver, K: int
) -> LowerErrors:
    """y_{K+1}^0 instead of y*: by how much the gradient changes, all else exact."""
    grads, errors, start = _lower_errors(key, problem, x, contexts, y_star, lower, K)
    rows = flat_rows(jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), grads))
    return LowerErrors(rows, float(jnp.sqrt(errors.mean())), float(jnp.sqrt(start.mean())))


@jit_once(static_argnames=("inverse",))
def _inverse_errors(key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y, inverse: InverseHessian) -> X:
    linear = direct_or_cg()

    def one(lane: tuple[jax.Array, Xi, Y]) -> X:
        i, xi, y = lane
        key_eta, key_r = random.split(random.fold_in(key, i))
        average = _average(key_eta, problem, x, xi)
        _, grad_y = average.grad_f(y)
        exact, _ = linear(average.hess_g(y), grad_y)

        def run(j: jax.Array) -> X:
            r, _ = inverse(random.fold_in(key_r, j), problem, x, y, xi, grad_y)
            return average.cross_g(y, exact if r is None else tree.sub(exact, r))

        return jax.vmap(run)(jnp.arange(REPEATS, dtype=jnp.int32))

    return lax.map(one, (jnp.arange(_each((y_star,)), dtype=jnp.int32), contexts, y_star))


def inverse_errors(key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y, inverse: InverseHessian) -> np.ndarray:
    """An inverse-Hessian estimate instead of the exact solve: by how much the gradient changes, at y*."""
    grads = _inverse_errors(key, problem, x, contexts, y_star, inverse)
    return flat_rows(jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), grads))


@jit_once()
def _cost_and_grad(key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y) -> tuple[jax.Array, X]:
    """F over some contexts on fixed samples, and its gradient by the implicit function theorem."""
    tight = 10 * float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y_star))).eps)

    def one(lane: tuple[jax.Array, Xi, Y]) -> tuple[jax.Array, X]:
        i, xi, y = lane
        eta = samples_of(random.fold_in(key, i), problem, xi, SAMPLES)
        average = of_stack(problem, x, xi, *eta, len(eta[1]))
        response = respond_on(average, y, newton_solver(tol=tight), direct_or_cg())
        return problem.weighted().f(x, response.solution.y, eta, xi), response.grad

    mean = lambda a: jnp.mean(a, axis=0)
    return jax.tree.map(mean, jax.vmap(one)((jnp.arange(_each((y_star,)), dtype=jnp.int32), contexts, y_star)))


def finite_differences(key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y) -> tuple[float, float]:
    """(largest error, relative tolerance) of the gradient along itself and along a random direction."""
    contexts, y_star = jax.tree.map(lambda a: a[:FEW], (contexts, y_star))
    cost = lambda x: _cost_and_grad(key, problem, x, contexts, y_star)
    _, grad = cost(x)
    flat, unravel = ravel_pytree(x)
    eps = float(jnp.finfo(flat.dtype).eps)
    h = eps ** (1 / 3) * (1 + float(jnp.linalg.norm(flat)))
    errors = []
    for direction in (ravel_pytree(grad)[0], random.normal(key, flat.shape, flat.dtype)):
        u = unravel(direction / jnp.maximum(jnp.linalg.norm(direction), jnp.finfo(flat.dtype).tiny))
        ahead, behind = (float(cost(trees.add_scale(x, step, u))[0]) for step in (h, -h))
        errors.append(abs((ahead - behind) / (2 * h) - float(tree.vdot(grad, u))))
    return float(np.max(errors)), 1e-4 if eps < 1e-10 else 2e-2
