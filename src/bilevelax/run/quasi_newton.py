"""Descent on a fixed sample, by the host: L-BFGS, or the spectral projected gradient where x is constrained.

Directions and line searches are SciPy's, imported at first use. What is ours is what a sample in single precision asks
for: values that differ by rounding only are replaced by what the slopes say, and a search that fails says why.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bilevelax.run.sampled import Point

PAIRS = 20  # steps that curvature is remembered from
SEARCHES = 25  # points of a line search at most
ROUNDING = 1e-6  # relative error of F in single precision
ARMIJO = 1e-4

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

    def rounding(self, point: Point, eps: float) -> float:
        """Of the gradient, in numbers of precision eps: of a context's own, and of x times the largest curvature.

        Steps of less than a thousand roundings are left out: across a kink these see any curvature.
        """
        far, size = np.linalg.norm(self.steps, axis=1), float(np.linalg.norm(point.x))
        seen = np.linalg.norm(self.changes, axis=1)[far > 1e3 * eps * size] / far[far > 1e3 * eps * size]
        return 30 * eps * (point.square**0.5 + float(seen.max(initial=0.0)) * size)

    def newton_direction(self, grad: np.ndarray) -> np.ndarray:
        """-H grad, H from the pairs on top of the last one's scale."""
        from scipy.optimize import LbfgsInvHessProduct

        s, y = self.steps[-1], self.changes[-1]
        scale = (s @ y) / (y @ y)
        root = np.sqrt(scale)  # SciPy's H starts from the identity: in x / root it is the scale
        return -scale * LbfgsInvHessProduct(self.steps / root, self.changes * root).matvec(grad)

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
        from scipy.optimize import line_search

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge: told by None
            found = line_search(
                lambda a: self.value(a[0]),
                lambda a: np.asarray([self.slope_at(a[0])]),
                np.zeros(1),
                np.ones(1),
                np.asarray([self.slope]),
                0.0,
                c1=ARMIJO,
                maxiter=SEARCHES,
            )[0]
        if found is not None:
            return self.point(found)
        best = min(self.seen, key=self.value)
        return self.seen[best] if self.value(best) < ARMIJO * best * self.slope else None

    def backtracking(self) -> Point | None:
        """The first of a = 1, 1/2, 1/4, ... that is low enough: x + p is feasible, what lies beyond may not be."""
        for k in range(SEARCHES):
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
