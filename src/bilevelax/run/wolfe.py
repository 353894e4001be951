"""A step that lowers a function of one number enough: strong Wolfe conditions, by bracketing and interpolation.

Algorithms 3.5 and 3.6 of Nocedal and Wright, Numerical Optimization, at the points that SciPy's `line_search` takes.
To import SciPy's optimizers takes half of the CPU seconds of compiling a small solve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

ARMIJO = 1e-4  # share of the decrease that a straight line promises
FLATTER = 0.9  # share of the first slope that may be left
DOUBLINGS = 25
CUTS = 11  # of a bracket
CUBIC, QUADRATIC = 0.2, 0.1  # shares of a bracket, from its low end on: nearer to its ends nothing is interpolated

Function = Callable[[float], float]


class End(NamedTuple):
    """Of a bracket."""

    at: float
    value: float
    slope: float = np.nan


class Conditions(NamedTuple):
    """Of a step, for a function that is zero at zero and has a slope < 0 there."""

    slope: float

    def falls_enough(self, point: End) -> bool:
        return point.value <= ARMIJO * point.at * self.slope

    def is_flat_enough(self, point: End) -> bool:
        return abs(point.slope) <= -FLATTER * self.slope


def strong_wolfe(value: Function, slope_at: Function, slope: float) -> float | None:
    """A step that meets the conditions, 1 if that does; the last doubling where the function falls on and on.

    ``value`` is relative to that at zero, where the slope is ``slope``. Each point is evaluated once, its slope only
    where its value is low enough. None: no cut of the bracket meets them.
    """
    conditions, last, a = Conditions(slope), End(0.0, 0.0, slope), 1.0
    for _ in range(DOUBLINGS):
        new = End(a, value(a))
        if not conditions.falls_enough(new) or (last.at > 0 and new.value >= last.value):
            return cut(value, slope_at, conditions, last, new)
        new = new._replace(slope=slope_at(a))
        if conditions.is_flat_enough(new):
            return a
        if new.slope >= 0:
            return cut(value, slope_at, conditions, new, last)
        last, a = new, 2 * a
    return a


def cut(value: Function, slope_at: Function, conditions: Conditions, low: End, high: End) -> float | None:
    """Between two ends, in any order: ``low`` is the lowest point so far, and its slope points to the other one."""
    before: End | None = None  # the end that was given up last
    for _ in range(CUTS):
        a = between(low, high, before)
        new = End(a, value(a))
        if not conditions.falls_enough(new) or new.value >= low.value:
            before, high = high, new
            continue
        new = new._replace(slope=slope_at(a))
        if conditions.is_flat_enough(new):
            return a
        before, high = (high, low) if new.slope * (high.at - low.at) >= 0 else (low, high)
        low = new
    return None


def between(low: End, high: End, before: End | None) -> float:
    """Where the cubic through three values is lowest, else the parabola through two, else half way."""
    with np.errstate(all="ignore"):  # nan and infinity are not inside
        for lowest, share in ((cubic(low, high, before), CUBIC), (parabola(low, high), QUADRATIC)):
            margin = share * (high.at - low.at)  # less than none where the low end is the right one, as in SciPy
            if min(low.at, high.at) + margin <= lowest <= max(low.at, high.at) - margin:
                return float(lowest)
    return (low.at + high.at) / 2


def parabola(low: End, high: End) -> float:
    """The lowest point of the one that has both values, and the slope of the first."""
    width = np.float64(high.at - low.at)
    return float(low.at - low.slope * width**2 / (2 * (high.value - low.value - low.slope * width)))


def cubic(low: End, high: End, before: End | None) -> float:
    """Likewise with a third value."""
    if before is None:
        return np.nan
    width, other = np.float64(high.at - low.at), np.float64(before.at - low.at)
    rises = np.asarray([end.value - low.value - low.slope * (end.at - low.at) for end in (high, before)])
    a, b = np.asarray([[other**2, -(width**2)], [-(other**3), width**3]]) @ rises
    a, b = (part / ((width * other) ** 2 * (width - other)) for part in (a, b))
    return float(low.at + (-b + np.sqrt(b**2 - 3 * a * low.slope)) / (3 * a))
