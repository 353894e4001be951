"""Random followers on every kind of set, in double precision."""

import functools

import jax.numpy as jnp
import numpy as np

import bilevelax as bx

D, D_X = 5, 3
RNG = np.random.default_rng(5)
ROOT = RNG.normal(size=(D, D))
H = ROOT @ ROOT.T / D + 0.5 * np.eye(D)
B = 2 * RNG.normal(size=(D, D_X))
TARGET = RNG.normal(size=D)
A = RNG.normal(size=(7, D))
TWO = RNG.normal(size=(2, D))
wave = lambda x, n: jnp.cos(x[0] + jnp.arange(n, dtype=float))

SETS = {
    "box": lambda: bx.box(-0.3, 0.4),
    "box that moves": lambda: bx.box(lambda x, xi: -0.2 - 0.1 * x[0] ** 2, lambda x, xi: 0.4 + 0.1 * wave(x, D)),
    "nonnegative": bx.nonnegative,
    "simplex": bx.simplex,
    "simplex that moves": lambda: bx.simplex(lambda x, xi: 1 + x[0] ** 2 + xi[0] ** 2),
    "ball": lambda: bx.ball(0.5),
    "ball that moves": lambda: bx.ball(lambda x, xi: 0.5 + 0.1 * x[0] ** 2, lambda x, xi: 0.2 * wave(x, D)),
    "affine": lambda: bx.affine(TWO, np.ones(2)),
    "affine that moves": lambda: bx.affine(lambda xi: TWO * (1 + xi[0] ** 2), lambda x, xi: x[:2]),
    "polyhedron": lambda: bx.polyhedron(A, np.full(7, 0.3)),
    "polyhedron that moves": lambda: bx.polyhedron(A, lambda x, xi: 0.3 + 0.1 * wave(x, 7), equalities=1),
    "polyhedron that turns": lambda: bx.polyhedron(
        lambda x, xi: A * (1 + 0.3 * jnp.outer(wave(x, 7), wave(x[1:], D))), lambda x, xi: 0.3 + 0.1 * wave(x, 7), 1
    ),
}


def problem_on(constraint, quartic=0.0, noise=0.0, shape=lambda y: y, init_y=None):
    """g = y'Hy/2 - <y, B x + xi + eta> + quartic |y|_4^4, on a set."""
    from jax import random

    def g(x, y, eta, xi):
        y = shape(y)
        return y @ (jnp.asarray(H) @ y) / 2 - y @ (jnp.asarray(B) @ x + xi + noise * eta) + quartic * jnp.sum(y**4)

    def f(x, y, eta, xi):
        y = shape(y)
        return jnp.sum((y - TARGET) ** 2) / 2 + jnp.sum(jnp.sin(y)) * x[0] + jnp.sum(x**2) / 2

    return bx.Problem(
        f=f,
        g=g,
        sample_context=lambda key, data: 0.5 * random.normal(key, (D,), float),
        sample_conditional=lambda key, xi, data: random.normal(key, (D,), float),
        init_y=init_y or (lambda x, xi: jnp.zeros(D)),
        constraint=constraint,
        mu_g=float(np.linalg.eigvalsh(H)[0]),
        L_g1=float(np.linalg.eigvalsh(H)[-1]) + 12 * quartic,
    )


@functools.cache
def points(n=3):
    rng = np.random.default_rng(8)
    return [jnp.asarray(rng.normal(size=D_X)) for _ in range(n)], [
        jnp.asarray(0.5 * rng.normal(size=D)) for _ in range(n)
    ]


def segment(constraint=None, **changes):
    """min_y (y - x)^2 / 2 on [0, 1], f = y: dy*/dx is 1 inside and 0 outside."""
    return bx.Problem(
        f=lambda x, y, eta, xi: y[0],
        g=lambda x, y, eta, xi: jnp.sum((y - x) ** 2) / 2,
        sample_context=lambda key, data: jnp.zeros(1),
        sample_conditional=lambda key, xi, data: jnp.zeros(()),
        init_y=lambda x, xi: jnp.zeros(1),
        constraint=constraint or bx.box(0.0, 1.0),
        mu_g=1.0,
        L_g1=1.0,
        **changes,
    )
