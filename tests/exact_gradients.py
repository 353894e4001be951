"""Hypergradients of problems whose expectations over eta are finite sums, by two roads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax.core.hypergradient import hypergradient
from bilevelax.core.inverse import none
from bilevelax.exact.inverse import dense
from bilevelax.exact.respond import every_answer
from bilevelax.exact.sample_average import newton_cg

DENSE = dense(1)


def exact(problem):
    """The problem whose only outcome of a context is its whole support, at which losses are expectations."""
    return dataclasses.replace(problem.weighted(), sample_conditional=lambda key, xi, data: problem.support(xi, data))


def answer(problem, x, xi):
    """(the only outcome, y*)."""
    eta = problem.conditional(random.key(0), xi)
    return eta, newton_cg(problem, x, xi, eta, problem.start(x, xi)).y


def value_and_gradient(problem, x, inverse=DENSE):
    """F(x), the mean over all contexts, and grad F(x) by eq. (6) at y*."""

    def one(i):
        xi = problem.nth_context(i)
        eta, y = answer(problem, x, xi)
        return problem.f(x, y, eta, xi), hypergradient(random.key(0), problem, x, y, xi, inverse)[0]

    every = jax.vmap(one)(jnp.arange(problem.n_contexts, dtype=jnp.int32))
    return jax.tree.map(lambda a: a.mean(0), every)


def objective(problem, x):
    """F(x) alone; the compiler drops the rest."""
    return value_and_gradient(problem, x, none())[0]


def gradient(problem, x, inverse=DENSE):
    return value_and_gradient(problem, x, inverse)[1]


def differences(problem, x, h=1e-5):
    """grad F by central differences of F, with the answers of followers that may have a constraint."""
    flat, unravel = ravel_pytree(x)

    def value(point):
        x = unravel(point)
        paid = lambda i, y: problem.weighted().f(x, y, problem.outcomes(xi := problem.nth_context(i)), xi)
        return jax.vmap(paid)(jnp.arange(problem.n_contexts, dtype=jnp.int32), every_answer(problem, x)).mean()

    steps = h * jnp.eye(flat.size)
    after, before = (jax.lax.map(value, flat[None] + sign * steps) for sign in (1, -1))
    return unravel((after - before) / (2 * h))


def assert_matches_differences(problem, x, *, inverse=DENSE, rtol=1e-5, h=1e-4):
    """gradient(x) against central differences of objective(x) in every coordinate of the pytree x."""
    flat, unravel = ravel_pytree(x)
    assert flat.dtype == jnp.float64
    at = jax.jit(lambda point: value_and_gradient(problem, unravel(point), inverse))
    numbers = [(at(flat.at[j].add(h))[0] - at(flat.at[j].add(-h))[0]) / (2 * h) for j in range(flat.size)]
    found = ravel_pytree(at(flat)[1])[0]
    assert float(jnp.linalg.norm(found)) > 1e-3, "a vanishing gradient tests nothing"
    np.testing.assert_allclose(found, np.asarray(numbers), rtol=0, atol=rtol * float(jnp.linalg.norm(found)))
