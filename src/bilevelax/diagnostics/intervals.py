"""A confidence interval of the squared norm of a mean, from independent vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from bilevelax.base.quantiles import student

GROUPS = 64  # rows that enter the interval: from twice as many on they are averaged first, less what is left over
DRAWS = 4000
BISECTIONS = 40

Projection = Callable[[np.ndarray], np.ndarray]


def squared_norm(rows: np.ndarray, level: float) -> tuple[float, float, float]:
    r"""(estimate, low, high) of |m|^2 from independent rows with mean m.

    .. math::
        U = \frac{1}{B(B-1)} \sum_{a \ne b} v_a \cdot v_b

    is unbiased. The lower end is U less the jackknife's standard error times Student's quantile.
    The upper end is the larger of the same on the other side and of `worst_direction`: alone, the
    jackknife's upper end is too low (80 % instead of 95 % of coverage) where |m| is one or two
    times the noise of the mean, because a mean that came out small also makes its error look small.
    """
    rows = grouped(rows)
    estimate, low, high = jackknife(rows, level)
    return estimate, max(low, 0.0), max(high, worst_direction(rows, level))


def jackknife(rows: np.ndarray, level: float) -> tuple[float, float, float]:
    """(U, low, high) by the jackknife's standard error and Student's quantile."""
    B = len(rows)
    products = (rows @ rows.sum(0) - np.sum(rows**2, 1)) / (B - 1)
    estimate = products.mean()
    stderr = 2 / (B - 2) * np.sqrt((B - 1) / B * np.sum((products - estimate) ** 2))
    reach = student(B - 1, (1 + level) / 2) * stderr
    return float(estimate), float(estimate - reach), float(estimate + reach)


def grouped(rows: np.ndarray) -> np.ndarray:
    """Means of every GROUPS-th row where there are at least twice that many."""
    each = len(rows) // GROUPS
    return rows if each < 2 else rows[: each * GROUPS].reshape(each, GROUPS, -1).mean(0)


@functools.lru_cache(maxsize=8)
def _student(B: int, rank: int) -> np.ndarray:
    """Normal draws over the root of an independent chi-square: the variances come from B rows too. Fixed."""
    rng = np.random.default_rng(B)
    spread = np.sqrt((B - 1) / rng.chisquare(B - 1, size=(DRAWS, 1)))
    return rng.normal(size=(DRAWS, rank)) * spread


def worst_direction(rows: np.ndarray, level: float) -> float:
    """The largest |m|^2 for which a mean as short as the one seen is no rarer than (1 - level) / 2.

    Of all m of one length, the one along the noise's main direction makes short means likeliest:
    that one is assumed while the direction of m is in doubt, and m's own where |m| is large
    against the noise.
    """
    B, mean = len(rows), rows.mean(0)
    centred = (rows - mean) / np.sqrt(B * (B - 1))
    small = centred.T @ centred if rows.shape[1] < B else centred @ centred.T
    variances = np.maximum(np.linalg.eigvalsh(small)[::-1][: B - 1], 0.0)  # of the mean, largest first
    top, square = variances[0], mean @ mean
    if top == 0:
        return float(square)
    own = np.sum((centred @ mean) ** 2) / max(square, np.finfo(float).tiny)
    clear = max(square - variances.sum(), 0.0)
    along = (clear * own + 4 * top * top) / (clear + 4 * top)
    z = _student(B, len(variances))
    others, push = z[:, 1:] ** 2 @ variances[1:], z[:, 0] * np.sqrt(along)
    low, high = 0.0, np.sqrt(square) + 50 * np.sqrt(along)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        as_short = np.mean(others + (middle + push) ** 2 <= square)
        low, high = (middle, high) if as_short >= (1 - level) / 2 else (low, middle)
    return float(high**2)


def distance(rows: np.ndarray, level: float) -> float:
    """What the mean of the rows' distance from their expectation exceeds with probability 1 - level at most."""
    rows = grouped(rows)
    B = len(rows)
    centred = (rows - rows.mean(0)) / np.sqrt(B * (B - 1))
    small = centred.T @ centred if rows.shape[1] < B else centred @ centred.T
    variances = np.maximum(np.linalg.eigvalsh(small)[::-1][: B - 1], 0.0)
    return float(np.sqrt(np.quantile(_student(B, len(variances)) ** 2 @ variances, level)))


def projected_norm(rows: np.ndarray, x: np.ndarray, project: Projection, level: float) -> tuple[float, float, float]:
    """(estimate, low, high) of |x - P(x - m)|^2, P the projection on a convex set, from independent rows with mean m.

    Projections lengthen nothing: the measure errs by no more than the mean of the rows. One row alone is m itself.
    """
    measure = float(np.linalg.norm(x - project(x - rows.mean(0))))
    reach = distance(rows, level) if len(rows) > 1 else 0.0
    return measure**2, max(measure - reach, 0.0) ** 2, (measure + reach) ** 2
