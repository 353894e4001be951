"""Hypergradients of problems whose expectations over eta are finite sums, by two roads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax.hypergradient import hypergradient
from bilevelax.inverse import dense
from bilevelax.sample_average import newton_cg

DENSE = dense(1)


def exact(problem):
    """The problem whose only outcome of a context is its whole support, at which losses are expectations."""
    return dataclasses.replace(problem.weighted(), sample_conditional=lambda key, xi, data: problem.support(xi, data))


def answer(problem, x, xi):
    """(the only outcome, y*)."""
    eta = problem.conditional(random.key(0), xi)
    return eta, newton_cg(problem, x, xi, eta, problem.start(x, xi)).y


def objective(problem, x):
    """F(x), the mean over all contexts."""

    def one(i):
        xi = problem.nth_context(i)
        eta, y = answer(problem, x, xi)
        return problem.f(x, y, eta, xi)

    return jax.vmap(one)(jnp.arange(problem.n_contexts, dtype=jnp.int32)).mean()


def gradient(problem, x, inverse=DENSE):
    """grad F(x) by eq. (6) at y*."""

    def one(i):
        xi = problem.nth_context(i)
        return hypergradient(random.key(0), problem, x, answer(problem, x, xi)[1], xi, inverse)[0]

    return jax.tree.map(lambda a: a.mean(0), jax.vmap(one)(jnp.arange(problem.n_contexts, dtype=jnp.int32)))


def assert_matches_differences(problem, x, *, inverse=DENSE, rtol=1e-5, h=1e-4):
    """gradient(x) against central differences of objective(x) in every coordinate of the pytree x."""
    flat, unravel = ravel_pytree(x)
    assert flat.dtype == jnp.float64
    value = jax.jit(lambda point: objective(problem, unravel(point)))
    numbers = [(value(flat.at[j].add(h)) - value(flat.at[j].add(-h))) / (2 * h) for j in range(flat.size)]
    found = ravel_pytree(jax.jit(lambda x: gradient(problem, x, inverse))(x))[0]
    assert float(jnp.linalg.norm(found)) > 1e-3, "a vanishing gradient tests nothing"
    np.testing.assert_allclose(found, np.asarray(numbers), rtol=0, atol=rtol * float(jnp.linalg.norm(found)))
