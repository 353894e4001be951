"""Does an instrument move the treatment? First-stage F statistics, and standard errors of two-stage least squares."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

WEAK = 10.0  # below, estimates lean towards plain regression and intervals are too short (Staiger and Stock 1997)
ROUNDING = 1e-9


class FirstStage(NamedTuple):
    """Of one column of X that is not among the instruments: what the excluded instruments explain of it."""

    column: int
    F: float
    instruments: int  # excluded ones, degrees of freedom of the numerator
    rows: int  # degrees of freedom of the denominator

    @property
    def weak(self) -> bool:
        return self.F < WEAK

    def __str__(self) -> str:
        strength = f"below {WEAK:g}, so the instrument is weak" if self.weak else f"at least {WEAK:g}"
        return f"Column {self.column} of X: F({self.instruments}, {self.rows}) = {self.F:.1f}, {strength}."


def orthonormal(A: np.ndarray) -> np.ndarray:
    """A basis of the columns' span, as many as there are independent ones."""
    size = np.sqrt(np.sum(A**2, axis=0))
    U, s, _ = np.linalg.svd(A / np.where(size > 0, size, 1.0), full_matrices=False)
    return np.asarray(U[:, s > ROUNDING * len(A) ** 0.5 * max(s[0], ROUNDING)])


def unexplained(Q: np.ndarray, A: np.ndarray) -> np.ndarray:
    """What is left of the columns of A beside the span of Q."""
    return np.asarray(A - Q @ (Q.T @ A))


def is_exogenous(X: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Columns of X that are combinations of the instruments: these stand for themselves."""
    centred = X - X.mean(axis=0)
    left = np.linalg.norm(unexplained(Q, centred), axis=0)
    return np.asarray(left <= 1e-7 * np.maximum(np.linalg.norm(centred, axis=0), ROUNDING))


def first_stages(X: np.ndarray, exogenous: np.ndarray, Q: np.ndarray, included: np.ndarray) -> list[FirstStage]:
    """F of each other column: ((RSS_r - RSS) / q) / (RSS / (n - m)).

    RSS_r is what the ``included`` functions of the exogenous columns leave, RSS what all instruments, of which Q (n, m)
    is an orthonormal basis, leave.
    """
    Q_r, n = orthonormal(included), len(X)
    q, rows = Q.shape[1] - Q_r.shape[1], max(n - Q.shape[1], 1)
    found = []
    for column in np.flatnonzero(~exogenous):
        full, short = (float(np.sum(unexplained(basis, X[:, column]) ** 2)) for basis in (Q, Q_r))
        F = 0.0 if q < 1 else max(short - full, 0.0) / q / max(full / rows, np.finfo(float).tiny)
        found.append(FirstStage(int(column), F, q, rows))
    return found


def warn_of_weakness(stages: list[FirstStage], owner: str) -> None:
    """One sentence on the weakest."""
    weakest = min(stages, key=lambda stage: stage.F, default=None)
    if weakest is not None and weakest.weak:
        warnings.warn(
            f"`Z` of {owner} is a weak instrument for column {weakest.column} of X: its first-stage F is "
            f"{weakest.F:.1f}, below {WEAK:g}, so the estimate leans towards plain regression and its standard error "
            "is too small; find a stronger instrument.",
            UserWarning,
            stacklevel=3,
        )


class StandardErrors(NamedTuple):
    """Of the intercept and the coefficients."""

    classical: np.ndarray  # errors of equal variance
    robust: np.ndarray  # to errors of unequal variance (HC1)


def standard_errors(columns: np.ndarray, Q: np.ndarray, residuals: np.ndarray) -> StandardErrors:
    """Two-stage least squares: columns (n, k) with the constant first, residuals y - columns b (not P columns b)."""
    n, k = columns.shape
    fitted = Q @ (Q.T @ columns)
    inverse = np.linalg.pinv(fitted.T @ fitted)
    free = max(n - k, 1)
    classical = inverse * (residuals @ residuals / free)
    meat = (fitted * residuals[:, None] ** 2).T @ fitted
    robust = inverse @ meat @ inverse * (n / free)
    return StandardErrors(*(np.sqrt(np.maximum(np.diag(V), 0.0)) for V in (classical, robust)))
