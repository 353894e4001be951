"""Followers that are hard to solve, each with its exact answer by NumPy in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import bilevelax as bx


class Ridge(NamedTuple):
    """A ridge regression as follower and its exact hypergradient."""

    problem: bx.Problem
    x: jnp.ndarray
    grad: float


def ridge(
    columns: int = 20,
    rows: int = 64,
    *,
    change: Callable[[np.ndarray], np.ndarray] | None = None,
    init: float = 0.0,
    dtype: Any = np.float32,
    seed: int = 0,
) -> Ridge:
    """min_y mean (a'y - b)^2 / 2 + exp(x) |y|^2 / 2, paid on other rows; ``change(A)`` spoils the columns' units."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(2, rows, columns))
    b = 3 + A @ rng.normal(size=columns) / np.sqrt(columns) + rng.normal(size=(2, rows)) / 2
    A = A if change is None else change(A)
    A, b = A.astype(dtype), b.astype(dtype)
    x = np.asarray([-1.0], dtype)

    def loss(y: Any, row: Any) -> Any:
        return (row[0] @ y - row[1]) ** 2 / 2

    problem = bx.from_arrays(
        lambda x, y, eta, xi: loss(y, eta["test"]),
        lambda x, y, eta, xi: loss(y, eta["train"]) + jnp.exp(x[0]) * jnp.sum(y**2) / 2,
        contexts=np.zeros((1, 1), dtype),
        outcomes={"train": (A[:1], b[:1]), "test": (A[1:], b[1:])},
        init_y=lambda x, xi: jnp.full(columns, init, dtype),
    )
    train, test = A.astype(float)
    ridge = np.exp(float(x[0]))
    H = train.T @ train / rows + ridge * np.eye(columns)
    y = np.linalg.solve(H, train.T @ b[0].astype(float) / rows)
    slope = test.T @ (test @ y - b[1].astype(float)) / rows
    return Ridge(problem, jnp.asarray(x), float(-ridge * y @ np.linalg.solve(H, slope)))


def year(A: np.ndarray) -> np.ndarray:
    """A column of years: 2000 +- 10."""
    A = A.copy()
    A[..., 0] = 2000 + 10 * A[..., 0]
    return A


def one_large(A: np.ndarray) -> np.ndarray:
    A = A.copy()
    A[..., 0] *= 300
    return A


RIDGES: dict[str, dict[str, Any]] = {
    "well scaled": dict(),
    "year": dict(change=year),
    "one column times 300": dict(change=one_large),
    "a far start": dict(init=1e5),
    "a far start and a year": dict(change=year, init=1e3),
    "year, 60 columns": dict(columns=60, rows=200, change=year),
    "times 300, 60 columns": dict(columns=60, rows=200, change=one_large),
    "year, 4 columns": dict(columns=4, change=year),
    "double, year": dict(change=year, dtype=np.float64),
}
