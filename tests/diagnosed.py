"""Problems without noise and estimators of known bias, on which diagnostics are tried."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bx

SMALL = {"contexts": 4, "samples": 256, "n": 64}
X = jnp.array([0.7, -0.4])


def plain_problem(f=None, mu_g=1.0, L_g1=4.0, bend=0.0):
    """No noise, hence quick to compile: y* = x, curvatures 1 - bend and 4."""
    curvature = jnp.array([1.0 - bend, 4.0])
    return bx.stochastic_bilevel(
        f=f or (lambda x, y, xi: jnp.sum((y - 1.0) ** 2) / 2 + jnp.sum(x**2) / 2),
        g=lambda x, y, eta: jnp.sum(curvature * y * (y / 2 - x)),
        sample_upper=lambda key, data: jnp.zeros(()),
        sample_lower=lambda key, data: jnp.zeros(()),
        init_y=lambda x: jnp.zeros(2),
        mu_g=mu_g,
        L_g1=L_g1,
    )


plain_gradient = bx.stateless(lambda key, problem, x: bx.Estimate(2 * x - 1.0, bx.Cost(xi=1), {}))


def linear_estimator(matrices, sign=1.0, noise=0.1):
    J = np.linalg.solve(matrices.A, matrices.B)

    def estimate(key, problem, x):
        """The exact gradient of the context, with noise: E xi = 0, so its mean is linear in x and xi."""
        key_xi, key_v = random.split(key)
        xi = problem.context(key_xi)
        G = np.linalg.solve(matrices.A, matrices.C)
        to_y = jnp.asarray(J) @ x + jnp.asarray(G) @ xi
        r = to_y - jnp.asarray(matrices.q) - jnp.asarray(matrices.R) @ xi + jnp.asarray(matrices.S.T) @ x
        grad = jnp.asarray(matrices.S) @ to_y + matrices.rho * x + jnp.asarray(J.T) @ r
        return bx.Estimate(sign * grad + noise * random.normal(key_v, x.shape), bx.Cost(xi=1), {})

    return bx.stateless(estimate)


@functools.cache
def pull(d_x=2, d_y=2):
    """SBO without noise: y* = A x with A of ones on its diagonal; f is |y - 1|^2 / 2."""
    A = jnp.eye(d_y, d_x)
    return bx.stochastic_bilevel(
        f=lambda x, y, xi: jnp.sum((y - 1.0) ** 2) / 2,
        g=lambda x, y, eta: jnp.sum((y - A @ x) ** 2) / 2,
        sample_upper=lambda key, data: jnp.zeros(()),
        sample_lower=lambda key, data: jnp.zeros(()),
        init_y=lambda x: jnp.zeros(d_y),
        mu_g=1.0,
        L_g1=1.0,
    )
