"""Exact gradients of some contexts: what estimators are held against."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax import trees
from bilevelax.compiling import jit_once
from bilevelax.newton import default_tol, direct_or_cg
from bilevelax.problem import Eta, Key, Problem, PyTree, X, Xi, Y
from bilevelax.sample_average import Average, Response, newton_solver, of_stack, respond_on

LANES = 8  # contexts solved at once
QUICK = {"contexts": 32, "samples": 256}  # for those who must not take long
MOVE = 0.1  # how far away the terms are looked at too, relative to 1 + |x| and 1 + |y|
VANISHING = 100  # times the tolerance of the solves: terms so much smaller than those around are not told from zero


class Reference(NamedTuple):
    """Gradients of M contexts, flattened, by tight solves on many samples."""

    contexts: Xi  # stacked
    y: Y  # y*(x; xi) of each, stacked
    grads: np.ndarray  # (M, d_x)
    noise: np.ndarray  # (M, d_x): one draw of each gradient's own error, zero where it is exact
    terms: np.ndarray  # (M,): squared sizes of grad_1 f and of the implicit term, added
    around: np.ndarray  # (M,): the same with grad f of a point nearby
    lower_grad_norm: float  # largest left by the solves, relative to the start
    tol: float  # of the solves

    @property
    def grad(self) -> np.ndarray:
        """The gradient of F over these contexts."""
        return self.grads.mean(0)

    @property
    def stderr(self) -> float:
        """Of the norm of `grad`, from the samples of eta."""
        return float(np.sqrt(np.sum(self.noise**2)) / len(self.noise))

    @property
    def scale(self) -> float:
        """Size of the gradient's terms: unlike |grad F|, it does not vanish where they cancel.

        It does where grad f itself vanishes in every context, as at an optimum with y* at f's own
        minimum: then it is zero, and not what rounding leaves.
        """
        here, around = np.sqrt(self.terms.mean()), np.sqrt(np.nan_to_num(self.around, posinf=0.0).mean())
        return float(here) if here > VANISHING * self.tol * around else 0.0


def context_number(i: Any, key: Key, problem: Problem, n: int) -> Xi:
    """Context i of n: a draw, or simply number i where there are no more than n."""
    every = problem.n_contexts is not None and problem.n_contexts <= n
    return problem.nth_context(i) if every else problem.context(random.fold_in(key, i))


def count_contexts(problem: Problem, n: int) -> int:
    return n if problem.n_contexts is None else min(n, problem.n_contexts)


def samples_of(key: Key, problem: Problem, xi: Xi, n: int) -> tuple[Eta, jax.Array]:
    """(samples, weights): all outcomes of a context where they are known, else n draws."""
    if problem.support is not None:
        return problem.outcomes(xi)
    return problem.conditionals(key, xi, n), jnp.full(n, 1 / n)


def halves(n: int) -> list[jax.Array]:
    """Weights of the mean over the first half of n samples, and over the others."""
    first = np.arange(n) < n // 2
    return [jnp.asarray(half / max(half.sum(), 1)) for half in (first, ~first)]


def exact_response(problem: Problem, x: X, xi: Xi, y: Y, etas: Eta, weights: jax.Array) -> tuple[Response, Average]:
    """The hypergradient on weighted samples, solved tightly from y."""
    average = of_stack(problem, x, xi, etas, weights, len(weights))
    return respond_on(average, y, newton_solver(), direct_or_cg()), average


@jit_once(static_argnames=("contexts", "samples"))
def _reference(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> tuple[Any, ...]:
    def one(i: jax.Array) -> tuple[Any, ...]:
        xi = context_number(i, key, problem, contexts)
        start = problem.start(x, xi)
        key_eta, key_u = (random.fold_in(random.fold_in(key, i), role) for role in (1, 2))
        etas, weights = samples_of(key_eta, problem, xi, samples)

        def on(weights: jax.Array) -> tuple[Y, X, jax.Array]:
            response, average = exact_response(problem, x, xi, start, etas, weights)
            first = tree.norm(average.grad_g(start))
            left = response.solution.grad_norm / jnp.maximum(first, jnp.finfo(first.dtype).tiny)
            return response.solution.y, response.grad, left

        if problem.support is not None:
            y, grad, left = on(weights)
            return xi, y, grad, tree.zeros_like(grad), *sizes(key_u, problem, x, xi, y, (etas, weights)), left
        ys, grads, lefts = jax.vmap(on)(jnp.stack([weights, *halves(samples)]))
        y = jax.tree.map(lambda a: a[0], ys)
        # the halves have twice the bias of the whole, to first order in 1 / samples: take it away
        grad = jax.tree.map(lambda a: 2 * a[0] - (a[1] + a[2]) / 2, grads)
        noise = jax.tree.map(lambda a: (a[1] - a[2]) / 2, grads)
        return xi, y, grad, noise, *sizes(key_u, problem, x, xi, y, (etas, weights)), lefts[0]

    return lax.map(one, jnp.arange(contexts, dtype=jnp.int32), batch_size=min(contexts, LANES))


def sizes(key: Key, problem: Problem, x: X, xi: Xi, y: Y, eta: tuple[Eta, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Squared sizes of the gradient's two terms at y*, added: with grad f there, and with that of a point nearby.

    The implicit term g12 r has the size of g12 u |r| for a random direction u: where it is the whole
    gradient, g12 r is zero at a stationary point and r need not be.
    """
    average = of_stack(problem, x, xi, *eta, len(eta[1]))
    hess, linear = average.hess_g(y), direct_or_cg()
    square = lambda a: tree.norm(a, squared=True).astype(float)  # x and y may differ in precision
    key_x, key_y = random.split(key)
    u_x, u_y = unit(key_x, x), unit(key_y, y)

    def of(grad_x: X, grad_y: Y) -> jax.Array:
        r, _ = linear(hess, grad_y)
        at_random = square(r) * square(average.cross_g(y, u_y))
        return square(grad_x) + jnp.maximum(square(average.cross_g(y, r)), at_random)

    x_near, y_near = (trees.add_scale(a, MOVE * (1 + tree.norm(a)), u) for a, u in ((x, u_x), (y, u_y)))
    return of(*average.grad_f(y)), of(*problem.weighted().grad_f(x_near, y_near, eta, xi))


def unit(key: Key, like: PyTree) -> PyTree:
    """A random direction."""
    flat, unravel = ravel_pytree(like)
    direction = random.normal(key, flat.shape, flat.dtype)
    return unravel(direction / jnp.linalg.norm(direction))


def reference(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> Reference:
    """Exact gradients of ``contexts`` contexts: on all outcomes where they are known, else on many samples.

    On samples, the first-order bias of the sample average is removed by that of its two halves.
    """
    M = count_contexts(problem, contexts)
    xi, y, grads, noise, terms, around, left = _reference(key, problem, x, M, samples)
    terms, around = (np.asarray(a, float) for a in (terms, around))
    tol = default_tol(jnp.result_type(*jax.tree.leaves(y)))
    return Reference(xi, y, flat_rows(grads), flat_rows(noise), terms, around, float(jnp.max(left)), tol)


def flat_rows(stacked: PyTree) -> np.ndarray:
    """(rows, d) in float64."""
    return np.asarray(jax.vmap(lambda row: ravel_pytree(row)[0])(stacked), np.float64)


def only_contexts(problem: Problem, contexts: Xi) -> Problem:
    """The same problem where only these contexts occur, equally likely: its exact gradient is the mean of theirs."""
    M = jax.tree.leaves(contexts)[0].shape[0] if jax.tree.leaves(contexts) else 1
    if problem.n_contexts is not None and problem.n_contexts <= M:
        return problem

    def context_at(i: Any, data: tuple[PyTree, Xi]) -> Xi:
        return jax.tree.map(lambda a: a[i], data[1])

    return dataclasses.replace(
        problem.carrying(contexts),
        sample_context=lambda key, data: context_at(random.randint(key, (), 0, M), data),
        n_contexts=M,
        context_at=context_at,
    )
