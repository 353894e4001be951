"""Exact gradients of some contexts: what estimators are held against."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.newton import direct_or_cg
from bilevelax.problem import Eta, Key, Problem, PyTree, X, Xi, Y
from bilevelax.sample_average import Average, Response, newton_solver, of_stack, respond_on

LANES = 8  # contexts solved at once


class Reference(NamedTuple):
    """Gradients of M contexts, flattened, by tight solves on many samples."""

    contexts: Xi  # stacked
    y: Y  # y*(x; xi) of each, stacked
    grads: np.ndarray  # (M, d_x)
    noise: np.ndarray  # (M, d_x): one draw of each gradient's own error, zero where it is exact
    terms: np.ndarray  # (M,): |grad_1 f|^2 + |implicit term|^2
    lower_grad_norm: float  # largest left by the solves, relative to the start

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
        """Size of the gradient's terms: unlike |grad F|, it does not vanish where they cancel."""
        return float(np.sqrt(self.terms.mean()))


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


def exact_response(problem: Problem, x: X, xi: Xi, y: Y, etas: Eta, weights: jax.Array) -> tuple[Response, Average]:
    """The hypergradient on weighted samples, solved tightly from y."""
    average = of_stack(problem, x, xi, etas, weights, len(weights))
    return respond_on(average, y, newton_solver(), direct_or_cg()), average


@partial(jax.jit, static_argnames=("contexts", "samples"))
def _reference(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> tuple[Any, ...]:
    def one(i: jax.Array) -> tuple[Any, ...]:
        xi = context_number(i, key, problem, contexts)
        start = problem.start(x, xi)
        etas, weights = samples_of(random.fold_in(random.fold_in(key, i), 1), problem, xi, samples)

        def on(weights: jax.Array) -> tuple[Y, X, jax.Array, jax.Array]:
            response, average = exact_response(problem, x, xi, start, etas, weights)
            y = response.solution.y
            grad_x, _ = average.grad_f(y)
            terms = tree.norm(grad_x, squared=True) + tree.norm(tree.sub(grad_x, response.grad), squared=True)
            first = jnp.maximum(tree.norm(average.grad_g(start)), jnp.finfo(terms.dtype).tiny)
            return y, response.grad, terms, response.solution.grad_norm / first

        if problem.support is not None:
            y, grad, terms, left = on(weights)
            return xi, y, grad, tree.zeros_like(grad), terms, left
        first_half = jnp.arange(samples) < samples // 2
        halves = [jnp.where(half, 2 * weights, 0) for half in (first_half, ~first_half)]
        y, grads, terms, left = jax.vmap(on)(jnp.stack([weights, *halves]))
        # the halves have twice the bias of the whole, to first order in 1 / samples: take it away
        grad = jax.tree.map(lambda a: 2 * a[0] - (a[1] + a[2]) / 2, grads)
        noise = jax.tree.map(lambda a: (a[1] - a[2]) / 2, grads)
        return xi, jax.tree.map(lambda a: a[0], y), grad, noise, terms[0], left[0]

    return lax.map(one, jnp.arange(contexts, dtype=jnp.int32), batch_size=min(contexts, LANES))


def reference(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> Reference:
    """Exact gradients of ``contexts`` contexts: on all outcomes where they are known, else on many samples.

    On samples, the first-order bias of the sample average is removed by that of its two halves.
    """
    M = count_contexts(problem, contexts)
    xi, y, grads, noise, terms, left = _reference(key, problem, x, M, samples)
    return Reference(xi, y, flat_rows(grads), flat_rows(noise), np.asarray(terms, float), float(jnp.max(left)))


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
