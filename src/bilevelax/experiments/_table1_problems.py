"""A quadratic and a nonconvex contextual problem whose grad F is known, for Table 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.applications import quadratic
from bilevelax.experiments._stationarity import square_of
from bilevelax.problem import Problem


class Known(NamedTuple):
    """A problem, its first iterate, and x -> {"square": |grad F(x)|^2}."""

    problem: Problem
    x1: jax.Array
    square: Callable[[Any], dict[str, Any]]


def matrices() -> quadratic.Quadratic:
    """Eigenvalues of E A from 1 to 1.5; contexts and noise mild enough for many eps to be reached in minutes."""
    found = quadratic.matrices(d_x=3, d_y=5, d_xi=2, mu=1.0, L=1.5, noise=0.3, hessian_noise=0.2)
    return dataclasses.replace(found, B=0.5 * found.B, C=0.2 * found.C, R=0.2 * found.R)


def start(found: quadratic.Quadratic) -> np.ndarray:
    """x_1, at which |grad F| is about 1.25 on the quadratic."""
    return found.x_star + np.array([1.0, -1.0, 1.0])


def known_quadratic() -> Known:
    """The exact oracle; grad F is affine."""
    found = matrices()
    J = np.linalg.solve(found.A, found.B)
    hessian = J.T @ J + found.S @ J + J.T @ found.S.T + found.rho * np.eye(J.shape[1])
    grad_F = lambda x: jnp.asarray(hessian, x.dtype) @ (x - jnp.asarray(found.x_star, x.dtype))
    return Known(quadratic.problem_of(found), jnp.asarray(start(found), float), square_of(grad_F))


def known_nonconvex() -> Known:
    r"""The same follower; the leader pays :math:`\sum_i \varphi(u_i) + \eta_b^T y + |x|^2/20`, u = y - q - R xi.

    :math:`\varphi(u) = 2 u^2 / (1 + u^2)` is nonconvex. At y* every u_i is normal, so
    grad F = J' E phi'(u) + x/10 needs one-dimensional integrals only.
    """
    found = matrices()
    J, G = np.linalg.solve(found.A, found.B), np.linalg.solve(found.A, found.C)
    spread = np.linalg.norm(G - found.R, axis=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()

    def f(x: jax.Array, y: jax.Array, eta: jax.Array, xi: jax.Array) -> jax.Array:
        q, R = (jnp.asarray(a, y.dtype) for a in (found.q, found.R))
        square = (y - q - R @ xi) ** 2
        return jnp.sum(2 * square / (1 + square)) + eta[0] @ y + jnp.sum(x**2) / 20

    def grad_F(x: jax.Array) -> jax.Array:
        at = lambda a: jnp.asarray(a, x.dtype)
        u = (at(J) @ x - at(found.q))[:, None] + at(spread)[:, None] * at(nodes)[None]
        return at(J).T @ ((4 * u / (1 + u**2) ** 2) @ at(weights)) + x / 10

    problem = dataclasses.replace(quadratic.problem_of(found), f=f)
    return Known(problem, jnp.asarray(start(found), float), square_of(grad_F))


PROBLEMS: dict[str, Callable[[], Known]] = {"quadratic": known_quadratic, "nonconvex": known_nonconvex}
