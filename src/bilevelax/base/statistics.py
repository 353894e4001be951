"""Means, exponents and other statistics of runs that differ in their seeds, with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bilevelax.base.quantiles import normal_below, student
from bilevelax.base.text_table import three_digits

CONFIDENCE = 0.95
RESAMPLES = 2000
POWERED = (1.96 + 0.84) / 1.96  # of a 95 % half width
ENOUGH = 8  # values whose resamples have percentiles


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{three_digits(self.value)} [{three_digits(self.low)}, {three_digits(self.high)}]"

    @classmethod
    def of(cls, effect: Interval | float) -> Interval:
        """A number is an interval of no width."""
        return effect if isinstance(effect, Interval) else cls(effect, effect, effect)

    @property
    def seen(self) -> float:
        """How large an effect must be to be seen, as an interval without 0, with a probability of 80 %."""
        return POWERED * (self.high - self.low) / 2

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int | float) and self.low <= number <= self.high


def half_width(values: Any, axis: int = 0) -> np.ndarray:
    """Student's 95 % half width of the mean along an axis; 0 for a single value."""
    values = np.asarray(values, float)
    n = values.shape[axis]
    if n < 2:
        return np.zeros(np.delete(values.shape, axis))
    quantile = student(n - 1, (1 + CONFIDENCE) / 2)
    return quantile * values.std(axis, ddof=1) / np.sqrt(n)


def mean(values: Any) -> Interval:
    """The mean of independent values."""
    centre, half = float(np.mean(values)), float(half_width(values))
    return Interval(centre, centre - half, centre + half)


def bootstrap(statistic: Callable[[np.ndarray], float], samples: Any, seed: int = 0) -> Interval:
    """A statistic of stacked samples (first axis: seeds) with its interval over resampled seeds.

    Percentiles, moved outwards so that the interval of a mean is as wide as Student's (Hesterberg, The American
    Statistician 69, 2015); of fewer than ENOUGH values Student's with their standard deviation. A resample without an
    answer (nan) counts at both ends.
    """
    samples = np.asarray(samples)
    value, n = float(statistic(samples)), len(samples)
    if n < 2:
        return Interval(value, value, value)
    rng = np.random.default_rng(seed)
    found = np.asarray([statistic(samples[rng.integers(0, n, n)]) for _ in range(RESAMPLES)], float)
    wide = np.sqrt(n / (n - 1)) * student(n - 1, (1 + CONFIDENCE) / 2)
    if n < ENOUGH and np.all(np.isfinite(found)):
        half = float(wide * found.std())
        return Interval(value, value - half, value + half)
    end = lambda unknown, at: float(np.quantile(np.where(np.isnan(found), unknown, found), at, method="inverted_cdf"))
    return Interval(value, end(-np.inf, normal_below(-wide)), end(np.inf, normal_below(wide)))


def exponent(x: ArrayLike, y: ArrayLike) -> float:
    """p of y ~ x^p, by least squares on logarithms."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])


def steps_needed(mean_square: np.ndarray, every: int, eps: float) -> float:
    """The T from which on the mean over seeds (rows) is at most eps^2, interpolated; nan if it is not in the end."""
    curve = mean_square.mean(0)
    above = np.flatnonzero(curve > eps**2)
    i = int(above[-1]) + 1 if len(above) else 0
    if i == len(curve):
        return float("nan")
    if i == 0:
        return float(every)
    high, low = np.log(curve[i - 1]), np.log(curve[i])
    return float(every * (i + (high - 2 * np.log(eps)) / (high - low)))


def within_seeds(values: np.ndarray) -> list[Interval]:
    """Means of the columns of (seeds, columns), with intervals that leave out what the seeds' markets differ by:
    Cousineau 2005, with the width corrected as in Morey 2008 (Tutorials in Quantitative Methods for Psychology)."""
    n = values.shape[1]
    levelled = values - values.mean(1, keepdims=True) + values.mean()
    half = half_width(levelled) * np.sqrt(n / max(n - 1, 1))
    return [Interval(float(v), float(v - h), float(v + h)) for v, h in zip(values.mean(0), half, strict=True)]
