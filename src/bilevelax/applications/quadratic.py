"""Contextual quadratic whose y*, F, grad F and expected estimates are known in closed form.

.. math::
    g = \\tfrac12 y^T A(\\eta) y - y^T (B x + C \\xi + \\eta_b), \\quad
    f = \\tfrac12 |y - q - R \\xi|^2 + \\eta_b^T y + x^T S y + \\tfrac{\\rho}{2} |x|^2

with E A(eta) = A. EpochSGD is affine in y with independent coefficients, so the mean of its
iterates is the noise-free run, and every expectation below is a finite sum.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.applications import Application
from bilevelax.base.errors import require_integer
from bilevelax.core.problem import Problem, X


@dataclasses.dataclass(frozen=True, eq=False)  # eq=False: hashed by identity, as a static part of a problem must be
class Quadratic:
    """The matrices, and what follows from them. NumPy, float64."""

    Q: np.ndarray  # eigenvectors of A
    eigenvalues: np.ndarray
    B: np.ndarray
    C: np.ndarray
    q: np.ndarray
    R: np.ndarray
    S: np.ndarray
    rho: float
    noise: float
    hessian_noise: float

    @property
    def A(self) -> np.ndarray:
        return self.Q @ np.diag(self.eigenvalues) @ self.Q.T

    def g(self, x: X, y: jax.Array, eta: jax.Array, xi: jax.Array) -> jax.Array:
        noise, relative = eta[0], eta[1]
        Q, eigenvalues, B, C = (jnp.asarray(a, y.dtype) for a in (self.Q, self.eigenvalues, self.B, self.C))
        curvature = eigenvalues * (1 + relative)
        return jnp.sum(curvature * (Q.T @ y) ** 2) / 2 - y @ (B @ x + C @ xi + noise)

    def f(self, x: X, y: jax.Array, eta: jax.Array, xi: jax.Array) -> jax.Array:
        q, R, S = (jnp.asarray(a, y.dtype) for a in (self.q, self.R, self.S))
        return jnp.sum((y - q - R @ xi) ** 2) / 2 + eta[0] @ y + x @ (S @ y) + self.rho * jnp.sum(x**2) / 2

    def sample_conditional(self, key: jax.Array, xi: jax.Array, data: tuple[()]) -> jax.Array:
        key_b, key_a = random.split(key)
        shape = self.q.shape
        relative = random.uniform(key_a, shape, xi.dtype, -1.0, 1.0)
        return jnp.stack([self.noise * random.normal(key_b, shape, xi.dtype), self.hessian_noise * relative])

    # closed forms; E xi = 0 and E xi xi' = I

    def y_star(self, x: np.ndarray, xi: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.A, self.B @ x + self.C @ xi)

    def F(self, x: np.ndarray) -> float:
        J, G = np.linalg.solve(self.A, self.B), np.linalg.solve(self.A, self.C)
        mean = J @ x
        contexts = np.sum((G - self.R) ** 2) / 2
        return float(np.sum((mean - self.q) ** 2) / 2 + contexts + x @ self.S @ mean + self.rho * x @ x / 2)

    def grad_F(self, x: np.ndarray) -> np.ndarray:
        J = np.linalg.solve(self.A, self.B)
        return J.T @ (J @ x - self.q) + (self.S @ J + J.T @ self.S.T) @ x + self.rho * x

    @property
    def x_star(self) -> np.ndarray:
        return np.linalg.solve(self.hessian_F, np.linalg.solve(self.A, self.B).T @ self.q)

    @property
    def hessian_F(self) -> np.ndarray:
        J = np.linalg.solve(self.A, self.B)
        return J.T @ J + self.S @ J + J.T @ self.S.T + self.rho * np.eye(J.shape[1])

    def expected_y(self, x: np.ndarray, k: int, beta0: float, cap: float = np.inf) -> np.ndarray:
        """E[y_k^0] of EpochSGD from y_1^0 = 0, over contexts and samples."""
        y, b = np.zeros(len(self.q)), self.B @ x
        for epoch in range(1, k):
            step, mean = min(beta0 * 2.0**-epoch, cap), np.zeros_like(y)
            for _ in range(2**epoch):
                mean += y / 2**epoch
                y = y - step * (self.A @ y - b)
            y = mean
        return y

    def expected_v(self, x: np.ndarray, y: np.ndarray, N: int, L: float, scale: float = 0.5) -> np.ndarray:
        """E of eq. (6) where the lower iterate has mean y and the series is `neumann(N, L, scale)`."""
        h = scale / L
        powers = [np.linalg.matrix_power(np.eye(len(y)) - h * self.A, n) for n in range(N)]
        grad_y = y - self.q + self.S.T @ x
        return self.S @ y + self.rho * x + self.B.T @ (h * sum(powers) @ grad_y)

    def expected_v_k(
        self, x: np.ndarray, k: int, *, beta0: float, N: int, L: float, cap: float = np.inf, scale: float = 0.5
    ) -> np.ndarray:
        """E[v^k]: eq. (6) at y_k^0. `dl_sgd(K)` and `rt_mlmc(K)` have mean E[v^{K+1}]."""
        return self.expected_v(x, self.expected_y(x, k, beta0, cap), N, L, scale)


def matrices(**settings: Any) -> Quadratic:
    """Random matrices with eigenvalues of A from mu to L; the settings are those of `make`."""
    given = inspect.signature(make).bind(**settings)
    given.apply_defaults()
    return _matrices(*given.args)


def _matrices(
    d_x: int, d_y: int, d_xi: int, mu: float, L: float, noise: float, hessian_noise: float, seed: int
) -> Quadratic:
    for name, value in {"d_x": d_x, "d_y": d_y, "d_xi": d_xi}.items():
        require_integer(name, "quadratic", value, 1)
    if not 0 <= hessian_noise < 1:
        raise ValueError(f"`hessian_noise` of quadratic must lie in [0, 1). Got {hessian_noise!r}.")
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(d_y, d_y)))
    return Quadratic(
        Q=Q,
        eigenvalues=np.linspace(mu, L, d_y),
        B=rng.normal(size=(d_y, d_x)),
        C=rng.normal(size=(d_y, d_xi)),
        q=rng.normal(size=d_y),
        R=rng.normal(size=(d_y, d_xi)),
        S=0.1 * rng.normal(size=(d_x, d_y)),
        rho=0.5,
        noise=noise,
        hessian_noise=hessian_noise,
    )


def problem_of(quadratic: Quadratic) -> Problem:
    """The problem of these matrices, with its true constants."""
    d_y, d_xi = quadratic.C.shape
    spread = quadratic.hessian_noise
    return Problem(
        f=quadratic.f,
        g=quadratic.g,
        sample_context=lambda key, data: random.normal(key, (d_xi,), float),
        sample_conditional=quadratic.sample_conditional,
        init_y=lambda x, xi: jnp.zeros(d_y, x.dtype),
        mu_g=float(quadratic.eigenvalues.min() * (1 - spread)),
        L_g1=float(quadratic.eigenvalues.max() * (1 + spread)),
    )


SMALLEST = {"d_x": 2, "d_y": 2, "d_xi": 1}  # for the contract tests


def make(
    d_x: int = 4,
    d_y: int = 6,
    d_xi: int = 3,
    mu: float = 1.0,
    L: float = 4.0,
    noise: float = 0.5,
    hessian_noise: float = 0.3,
    seed: int = 0,
) -> Application:
    """The quadratic with metrics: distance to x*, F - F*, and the norm of the exact gradient."""
    quadratic = _matrices(d_x, d_y, d_xi, mu, L, noise, hessian_noise, seed)
    x_star = quadratic.x_star
    F_star = quadratic.F(x_star)

    def metrics(x: jax.Array) -> dict[str, float]:
        point = np.asarray(x, np.float64)
        return {
            "distance": float(np.linalg.norm(point - x_star)),
            "F_gap": quadratic.F(point) - F_star,
            "grad_norm": float(np.linalg.norm(quadratic.grad_F(point))),
        }

    return Application(problem_of(quadratic), jnp.zeros(d_x, float), metrics)
