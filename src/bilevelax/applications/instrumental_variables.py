"""Instrumental variables: a structural function from treatments that follow shocks nobody recorded.

.. math::
    \\min_x \\tfrac12 E_z \\, u^*(x; z)^2 + \\tfrac{\\alpha}{2} |x|^2, \\quad
    u^*(x; z) = \\arg\\min_u E \\, [\\tfrac12 (u - (Y - h_x(T)))^2 \\mid z] = E[Y - h_x(T) \\mid z]

z is the instrument, T the treatment, Y the outcome. Only a table of rows (z, T, Y) is known: the follower's conditional
mean is written in a basis of z (`reduced`; with straight lines this is two-stage least squares), or taken over
the nearest rows. The task is the demand design of Hartford, Lewis, Leyton-Brown and Taddy (ICML 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.applications import Application
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core.inverse import neumann
from bilevelax.core.problem import Problem, X
from bilevelax.problems.joint import from_joint
from bilevelax.problems.lower import averaged_step
from bilevelax.problems.reduced import reduced
from bilevelax.problems.smooth import frame, leading, products, smooth_products
from bilevelax.problems.stored import from_arrays

WAYS = ("joint", "neighbours")


class Observed(NamedTuple):
    """Rows: treatments T (price, time, emotion), outcomes y (sales), instruments z (cost, time, emotion)."""

    T: np.ndarray
    y: np.ndarray
    z: np.ndarray


def season(t: Any) -> Any:
    """How demand goes with the time of the year, t in [0, 10]."""
    return 2 * ((t - 5) ** 4 / 600 + np.exp(-4 * (t - 5) ** 2) + t / 10 - 2)


def sales(T: np.ndarray) -> np.ndarray:
    """The structural function: what a price, at a time, sells to customers of an emotion."""
    p, t, s = T.T
    return np.asarray(100 + (10 + p) * s * season(t) - 2 * p)


def demand_design(n: int, rho: float, rng: np.random.Generator, shock: float = 1.0) -> Observed:
    """n rows of Hartford et al.; rho is how much of the price's shock is in that of the sales, of size ``shock``."""
    s, t, c, v = rng.integers(1, 8, n), rng.uniform(0, 10, n), rng.normal(size=n), rng.normal(size=n)
    T = np.stack([25 + (c + 3) * season(t) + v, t, s], axis=1)
    noise = rho * v + np.sqrt(1 - rho**2) * rng.normal(size=n)
    return Observed(T, sales(T) + shock * noise, np.stack([c, t, s], axis=1))


def grid() -> np.ndarray:
    """Where the structural function is judged: 20 prices in [10, 25], 20 times, 7 emotions."""
    axes = np.linspace(10, 25, 20), np.linspace(0, 10, 20), np.arange(1.0, 8.0)
    return np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 3)


Structural = Callable[[X, jax.Array], jax.Array]  # (x, a row of treatments) -> a number


def losses(h: Structural, alpha: float) -> dict[str, Any]:
    """f and g, with an outcome (y, T) and a follower whose answer is a conditional mean."""

    def f(x: X, u: jax.Array, eta: Any, z: Any) -> jax.Array:
        size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))
        return u**2 / 2 + alpha / 2 * size

    return {
        "f": f,
        "g": lambda x, u, eta, z: (u - eta[0] + h(x, eta[1])) ** 2 / 2,
        "init_y": lambda x, z: jnp.zeros((), eta_dtype(x)),
        "mu_g": 1.0,
        "L_g1": 1.0,
    }


def eta_dtype(x: X) -> Any:
    return jnp.result_type(*jax.tree.leaves(x))


def pairs(h: Structural, rows: Observed, alpha: float) -> Problem:
    """The problem of the table alone, for `reduced` or an estimated conditional."""
    return from_joint(rows=(rows.z, (rows.y, rows.T)), **losses(h, alpha))


def nearest(h: Structural, rows: Observed, alpha: float, k: int) -> Problem:
    """The follower's mean is over the k rows with the nearest instruments, of unit deviation; none counts itself."""
    from scipy.spatial import cKDTree

    Z = rows.z / np.where(rows.z.std(axis=0) > 0, rows.z.std(axis=0), 1.0)
    near = cKDTree(Z).query(Z, k + 1)[1]
    own = near == np.arange(len(Z))[:, None]
    own[~own.any(axis=1), -1] = True  # of many rows at one place, itself may be farther down
    near = near[~own].reshape(len(Z), k)
    outcomes = (jnp.asarray(rows.y[near], float), jnp.asarray(rows.T[near], float))
    problem = from_arrays(contexts=jnp.asarray(rows.z, float), outcomes=outcomes, **losses(h, alpha))
    return problem.replace(lower=averaged_step(1.0), inverse=neumann(N=1, scale=1.0))  # a mean; its Hessian is 1


def linear(x: jax.Array, features: jax.Array) -> jax.Array:
    """h_x = features . x."""
    return features @ x


SMALLEST = {"n": 6, "functions": 2, "neighbours": 2}  # for the contract tests


def make(
    n: int = 1000,
    rho: float = 0.25,
    functions: int = 100,
    instruments: int = 100,
    alpha: float = 1e-4,
    conditional: str = "neighbours",
    neighbours: int = 16,
    seed: int = 0,
) -> Application:
    """The demand design with a structural function of smooth products; x holds its weights.

    Metrics: ``mse`` on the grid of prices, times and emotions against the structural function, and ``regression``,
    that of the same functions fitted to sales as if prices were random, with the same penalty.

    Args:
        n: rows.
        rho: endogeneity in [0, 1): the share of the price's shock in that of the sales.
        functions: smooth products in (price, time, emotion).
        instruments: smooth products in (cost, time, emotion) for ``conditional="joint"``.
        alpha: penalty of x, for sales of unit deviation.
        conditional: "neighbours", or "joint" for the reduced problem, whose follower answers in functions of z; it is
            the better of the two, with ``solve``.
        neighbours: rows of a conditional mean.
        seed: of the rows.
    """
    for name, value in {"n": n, "functions": functions, "instruments": instruments, "neighbours": neighbours}.items():
        require_integer(name, "instrumental_variables", value, 1)
    require_positive("alpha", "instrumental_variables", alpha)
    require_choice("conditional", "instrumental_variables", conditional, WAYS)
    if not 0 <= rho < 1:
        raise ValueError(f"`rho` of instrumental_variables must lie in [0, 1). Got {rho!r}.")
    if conditional == "neighbours" and neighbours >= n:
        raise ValueError(f"`neighbours` of instrumental_variables must be below n = {n}. Got {neighbours}.")
    rows = demand_design(n, rho, np.random.default_rng(seed))
    low, width = frame(rows.T)
    which, mean, scale = leading(3, functions), rows.y.mean(), rows.y.std()
    features = lambda T: products(T, low, width, which, np)
    scaled = Observed(features(rows.T), (rows.y - mean) / scale, rows.z)
    if conditional == "joint":
        problem = reduced(pairs(linear, scaled, alpha), smooth_products(instruments))
    else:
        problem = nearest(linear, scaled, alpha, neighbours)
    at, truth = features(grid()), sales(grid())

    def error(x: Any) -> float:
        return float(np.mean((at @ np.asarray(x, np.float64) * scale + mean - truth) ** 2))

    gram = scaled.T.T @ scaled.T / n + alpha * np.eye(functions)
    ignored = error(np.linalg.solve(gram, scaled.T.T @ scaled.y / n))
    x1 = jnp.zeros(functions, float)
    return Application(problem, x1, lambda x: {"mse": error(x), "regression": ignored})
