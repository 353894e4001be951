"""Descent on a fixed sample, by the host: L-BFGS, or the spectral projected gradient where x is constrained.

A sample in single precision asks for more than the textbook's: values that differ by rounding only are replaced by
what the slopes say, and a search that fails says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bilevelax.run.sampled import Point
from bilevelax.run.wolfe import ARMIJO, strong_wolfe

PAIRS = 20  # steps that curvature is remembered from
HALVINGS = 25  # of a step under a constraint, at most
ROUNDING = 1e-6  # relative error of F in single precision

At = Callable[[np.ndarray], Point]
Projection = Callable[[np.ndarray], np.ndarray]


class Curvature(NamedTuple):
    """Steps and changes of the gradient along them, the last ones."""

    steps: np.ndarray  # (pairs, d)
    changes: np.ndarray
    bent: bool = False  # was F seen to bend downwards along a line?

    def learnt(self, old: Point, new: Point) -> Curvature:
        s, y = new.x - old.x, new.grad - old.grad
        product = s @ y
        if not product > 1e-10 * np.linalg.norm(s) * np.linalg.norm(y):
            return self
        steps, changes = (np.concatenate([a, b[None]])[-PAIRS:] for a, b in ((self.steps, s), (self.changes, y)))
        return Curvature(steps, changes, self.bent)

    def newton_direction(self, grad: np.ndarray) -> np.ndarray:
        """-H grad, H from the pairs on top of the last one's scale: the recursion of two loops."""
        pairs, shares = list(zip(self.steps, self.changes, strict=True)), []
        direction = -grad
        for s, y in reversed(pairs):
            shares.append((s @ direction) / (s @ y))
            direction = direction - shares[-1] * y
        s, y = pairs[-1]
        direction = direction * (s @ y) / (y @ y)
        for (s, y), share in zip(pairs, reversed(shares), strict=True):
            direction = direction + (share - (y @ direction) / (s @ y)) * s
        return direction

    def spectral(self) -> float:
        """Barzilai and Borwein's step."""
        s, y = self.steps[-1], self.changes[-1]
        return float((s @ s) / (s @ y))


def no_curvature(d: int) -> Curvature:
    return Curvature(np.zeros((0, d)), np.zeros((0, d)))


class Line:
    """F along x + a p, each point evaluated once."""

    def __init__(self, at: At, start: Point, direction: np.ndarray) -> None:
        self.at, self.start, self.direction = at, start, direction
        self.slope = float(start.grad @ direction)
        self.seen: dict[float, Point] = {0.0: start}

    def point(self, a: float) -> Point:
        a = float(a)
        if a not in self.seen:
            self.seen[a] = self.at(self.start.x + a * self.direction)
        return self.seen[a]

    def value(self, a: float) -> float:
        """F less that of the start; where rounding hides the difference, what the slopes at both ends say."""
        point, base = self.point(a), self.start.F
        change = point.F - base
        if not np.isfinite(change):
            return np.inf
        if abs(change) <= ROUNDING * (abs(base) + abs(point.F)):
            return a * (self.slope + self.slope_at(a)) / 2
        return change

    def slope_at(self, a: float) -> float:
        slope = float(self.point(a).grad @ self.direction)
        return slope if np.isfinite(slope) else np.inf

    def bent(self) -> bool:
        """Does F's slope fall along the line, by more than rounding? Of a convex F it never does."""
        slopes = [self.slope_at(a) for a in sorted(self.seen)]
        return any(later < sooner - 1e-2 * abs(self.slope) for sooner, later in itertools.pairwise(slopes))

    def wolfe(self) -> Point | None:
        """A point that satisfies the strong Wolfe conditions; else the lowest that was met, if lower."""
        found = strong_wolfe(self.value, self.slope_at, self.slope)
        if found is not None:
            return self.point(found)
        best = min(self.seen, key=self.value)
        return self.seen[best] if self.value(best) < ARMIJO * best * self.slope else None

    def backtracking(self) -> Point | None:
        """The first of a = 1, 1/2, 1/4, ... that is low enough: x + p is feasible, what lies beyond may not be."""
        for k in range(HALVINGS):
            if self.value(0.5**k) <= ARMIJO * 0.5**k * self.slope:
                return self.point(0.5**k)
        return None


def first_length(point: Point) -> float:
    """Of a step before any curvature is known: a tenth of x's size, or of one."""
    return 0.1 * max(1.0, float(np.linalg.norm(point.x))) / max(float(np.linalg.norm(point.grad)), 1e-300)


def descent(at: At, point: Point, known: Curvature, project: Projection | None) -> Iterator[tuple[Point, Curvature]]:
    """Points of falling F, without end; it ends where no step along the gradient lowers F any more."""
    while True:
        new = None
        for memory in [known, no_curvature(point.x.size)][: 1 + bool(len(known.steps))]:
            line = Line(at, point, direction_of(point, memory, project))
            if line.slope < 0:
                new = line.backtracking() if project else line.wolfe()
            if new is not None:
                break
            known = no_curvature(point.x.size)._replace(bent=known.bent)
        if new is None:
            return
        known = known.learnt(point, new)._replace(bent=known.bent or line.bent())
        point = new
        yield point, known


def direction_of(point: Point, known: Curvature, project: Projection | None) -> np.ndarray:
    if project is not None:
        step = known.spectral() if len(known.steps) else first_length(point)
        return project(point.x - step * point.grad) - point.x
    if not len(known.steps):
        return -first_length(point) * point.grad
    direction = known.newton_direction(point.grad)
    return direction if direction @ point.grad < 0 else -first_length(point) * point.grad


def stationarity(point: Point, project: Projection | None) -> float:
    """|grad F|, or |x - P(x - grad F)| under a constraint."""
    step: Any = point.grad if project is None else point.x - project(point.x - point.grad)
    return float(np.linalg.norm(step))
