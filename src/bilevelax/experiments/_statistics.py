"""Confidence intervals over seeds, slopes, and how to print them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

LEVEL = 0.95
RESAMPLES = 1000


def number(value: float) -> str:
    """Three digits, without an exponent where a reader would count its zeros: 1,290 and 0.0103, but 3.4e7."""
    if not np.isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = float(f"{value:.3g}")
    if 1e3 <= abs(rounded) < 1e6:
        return f"{rounded:,.0f}"
    if 1e-4 <= abs(rounded) < 1e3:
        return f"{rounded:.3g}"
    mantissa, _, power = f"{rounded:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(power)}"


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} [{number(self.low)}, {number(self.high)}]"

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int | float) and self.low <= number <= self.high


def half_width(values: Any, axis: int = 0) -> np.ndarray:
    """Student's 95 % half width of the mean along an axis; 0 for a single value."""
    values = np.asarray(values, float)
    n = values.shape[axis]
    if n < 2:
        return np.zeros(np.delete(values.shape, axis))
    quantile = scipy.special.stdtrit(n - 1, (1 + LEVEL) / 2)
    return quantile * values.std(axis, ddof=1) / np.sqrt(n)


def mean(values: Any) -> Interval:
    """The mean of independent values."""
    centre, half = float(np.mean(values)), float(half_width(values))
    return Interval(centre, centre - half, centre + half)


def bootstrap(statistic: Callable[[np.ndarray], float], samples: Any, seed: int = 0) -> Interval:
    """A statistic of stacked samples (first axis: seeds) with its percentile interval over resampled seeds."""
    samples = np.asarray(samples)
    rng = np.random.default_rng(seed)
    n = len(samples)
    found = [statistic(samples[rng.integers(0, n, n)]) for _ in range(RESAMPLES if n > 1 else 0)]
    value = statistic(samples)
    kept = [f for f in found if np.isfinite(f)]
    low, high = np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if kept else (value, value)
    return Interval(float(value), float(low), float(high))


def slope(x: Any, y: Any, stderr: Any = None) -> Interval:
    """The least-squares slope of y against x; its interval from the residuals, or from given standard errors of y."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    centred = x - x.mean()
    weight = centred / (centred @ centred)
    value = float(weight @ y)
    if stderr is not None:
        half = 1.96 * float(np.sqrt(weight**2 @ np.asarray(stderr, float) ** 2))
    else:
        residual = y - y.mean() - value * centred
        freedom = max(len(x) - 2, 1)
        half = scipy.special.stdtrit(freedom, (1 + LEVEL) / 2) * np.sqrt(
            residual @ residual / freedom / (centred @ centred)
        )
    return Interval(value, value - float(half), value + float(half))


def exponent(x: ArrayLike, y: ArrayLike) -> float:
    """p of y ~ x^p, by least squares on logarithms."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])
