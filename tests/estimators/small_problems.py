"""Problems with known derivatives and minimisers, and short runs on them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from jax.flatten_util import ravel_pytree

import bilevelax as bx

M = 6  # blocks of the fixture `multi_block`


def once(estimator, key, problem, x):
    """(estimate, state) of a first call, compiled."""
    return jax.jit(estimator.estimate)(key, problem, x, estimator.init(problem, x))


def final(problem, estimator, optimizer, x1, T):
    result = bx.minimize(problem, estimator, optimizer, x1, key=random.key(1), T=T, every=T, progress=False)
    return np.asarray(ravel_pytree(result.x)[0])


def decaying(scale, shift):
    return optax.sgd(lambda t: scale / (t + shift).astype(float))


# A lower level that is not quadratic, with its derivatives by hand:
# g = y'A(eta)y/2 + sum(y^4)/12 + (p.x)|y|^2/2 - y'(Bx + xi), f = |y - q - eta|^2/2 + x'Sy, y_0 = Cx + xi


class Quartic:
    d_x, d_y = 3, 2

    def __init__(self):
        rng = np.random.default_rng(3)
        self.B, self.C = rng.normal(size=(2, self.d_y, self.d_x))
        self.S = rng.normal(size=(self.d_x, self.d_y))
        self.p = np.array([0.1, 0.2, -0.1])
        self.q = rng.normal(size=self.d_y)
        flat = lambda x: jnp.concatenate([x["a"], x["b"]])

        def g(x, y, eta, xi):
            x = flat(x)
            quadratic = jnp.sum((1 + eta**2) * y**2) / 2 + jnp.sum(y**4) / 12 + (self.p @ x) * jnp.sum(y**2) / 2
            return quadratic - y @ (self.B @ x + xi)

        self.problem = bx.Problem(
            f=lambda x, y, eta, xi: jnp.sum((y - self.q - eta) ** 2) / 2 + flat(x) @ (self.S @ y),
            g=g,
            sample_context=lambda key, data: random.normal(key, (2,), float),
            sample_conditional=lambda key, xi, data: random.normal(key, (2,), float),
            init_y=lambda x, xi: self.C @ flat(x) + xi,
        )
        self.x = {"a": jnp.array([0.3, -0.2]), "b": jnp.array([0.5])}

    def slope(self, x, y, eta, xi):
        return (1 + eta**2) * y + y**3 / 3 + (self.p @ x) * y - self.B @ x - xi

    def hessian(self, x, y, eta):
        return np.diag(1 + eta**2 + y**2 + self.p @ x)

    def mixed(self, y):
        """d/dx of the slope, d_y by d_x."""
        return np.outer(y, self.p) - self.B

    def grads_f(self, x, y, eta):
        return self.S @ y, y - self.q - eta + self.S.T @ x
