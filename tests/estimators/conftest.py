"""Problems that tests of several estimators share."""

import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import M, Quartic

import bilevelax as bx


@pytest.fixture(scope="module")
def quartic():
    return Quartic()


# Many small quadratics: g_i = y'A_i y/2 - y'(B_i x + b_i + eta), f_i = |y - q_i - eta|^2/2 + |x|^2/4, E eta = 0.
# y_i* = J_i x + k_i with J_i = A_i^-1 B_i, k_i = A_i^-1 b_i, so F is quadratic and x* solves a linear system.


@pytest.fixture(scope="module")
def multi_block():
    """(problem with noise, the same without, x1, x*)."""
    rng = np.random.default_rng(0)
    Q = np.stack([np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(M)])
    A = Q @ (rng.uniform(1, 2, size=(M, 3, 1)) * Q.mT)
    B, b = rng.normal(size=(M, 3, 2)), rng.normal(size=(M, 3))
    J, k = np.linalg.solve(A, B), np.linalg.solve(A, b[..., None])[..., 0]
    q = J @ np.array([2.0, -1.0]) + rng.normal(size=(M, 3))
    x_star = np.linalg.solve(np.mean(J.mT @ J, 0) + np.eye(2) / 2, np.mean((J.mT @ (q - k)[..., None])[..., 0], 0))
    noise = 0.5 * rng.normal(size=(M, 4, 3))
    noise -= noise.mean(1, keepdims=True)
    flat = lambda y: jnp.concatenate([y["u"], y["w"]])

    def make(outcomes):
        return bx.from_arrays(
            f=lambda x, y, eta, xi: jnp.sum((flat(y) - xi["q"] - eta) ** 2) / 2 + jnp.sum(x["p"] ** 2) / 4,
            g=lambda x, y, eta, xi: flat(y) @ xi["A"] @ flat(y) / 2 - flat(y) @ (xi["B"] @ x["p"] + xi["b"] + eta),
            contexts={"A": A, "B": B, "b": b, "q": q},
            outcomes=outcomes,
            init_y=lambda x, xi: {"u": jnp.zeros(2), "w": jnp.zeros(1)},
            mu_g=1.0,
            L_g1=2.0,
        )

    return make(noise), make(0 * noise), {"p": jnp.zeros(2)}, x_star
