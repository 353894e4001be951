"""What the structural function of `IVRegressor` is made of: functions of the columns, and their penalised weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.problems.smooth import frame, leading, products

CAUTION = 1.4  # a parameter counts as so many in cross-validation, which else smooths too little (Wood 2017)


class Functions(NamedTuple):
    """The functions of a table's columns that a kernel or a straight line is made of; the first is 1."""

    low: np.ndarray
    width: np.ndarray
    which: np.ndarray | None  # smooth products; None: the columns themselves

    @classmethod
    def of(cls, A: np.ndarray, n: int | None) -> Functions:
        if n is not None:
            return cls(*frame(A), leading(A.shape[1], n))
        return cls(A.mean(axis=0), np.where(A.std(axis=0) > 0, A.std(axis=0), 1.0), None)

    def __call__(self, A: np.ndarray) -> np.ndarray:
        if self.which is None:
            return np.column_stack([np.ones(len(A)), (A - self.low) / self.width])
        return np.asarray(products(A, self.low, self.width, self.which, np))

    def of_columns(self, there: np.ndarray) -> np.ndarray:
        """Which of the functions see these columns only."""
        if self.which is None:
            return np.concatenate([[True], there])
        return np.asarray((self.which[:, ~there] == 0).all(axis=1))


class Ridge(NamedTuple):
    """min_x |r - A x|^2 + n alpha |x|^2, the first weight free, for many alphas from one decomposition."""

    one: np.ndarray  # what becomes of the constant
    A: np.ndarray  # of the other functions, the constant's part taken out
    parts: Any
    r: np.ndarray
    n: int
    means: float  # how many means that share no rows these are: the squared size of the matrix that makes them

    @classmethod
    def of(cls, A: np.ndarray, r: np.ndarray, n: int, means: float) -> Ridge:
        one = A[:, 0]
        direction = one / max(np.linalg.norm(one), np.finfo(float).tiny)
        rest = A[:, 1:] - np.outer(direction, direction @ A[:, 1:])
        return cls(one, rest, np.linalg.svd(rest, full_matrices=False), r - direction * (direction @ r), n, means)

    def weights(self, alpha: float) -> np.ndarray:
        U, s, Vt = self.parts
        if alpha == 0:
            s = np.where(s > 1e-10 * max(s.max(initial=0.0), 1e-300), s, np.inf)  # of least length
        return np.asarray(Vt.T @ (s / np.where(np.isinf(s), np.inf, s**2 + self.n * alpha) * (U.T @ self.r)))

    def cross_validation(self, alpha: float) -> float:
        """Generalised: squared residuals over the square of the freedom that is left."""
        _, s, _ = self.parts
        left = self.means - 1 - CAUTION * float(np.sum(s**2 / (s**2 + self.n * alpha)))
        return float(np.sum((self.r - self.A @ self.weights(alpha)) ** 2) / left**2) if left > 0 else np.inf
