"""The two loops of DL-SGD and RT-MLMC: epochs of a lower solver, then the hypergradient at what they reached."""

from __future__ import annotations

from typing import NamedTuple

from bilevelax.base.errors import require_integer
from bilevelax.core.estimate import Cost, Count
from bilevelax.core.hypergradient import hypergradient, hypergradients
from bilevelax.core.inverse import InverseHessian, inverse_of
from bilevelax.core.lower import LowerSolver, lower_of
from bilevelax.core.problem import Key, Problem, X, Xi, Y


class DoubleLoop(NamedTuple):
    """What `dl_sgd` and `rt_mlmc` are made of."""

    K: int
    lower: LowerSolver | None = None
    inverse: InverseHessian | None = None
    batch: int = 1
    base_level: int = 1

    def checked(self, owner: str) -> DoubleLoop:
        """These settings, or a sentence that says which of them cannot be."""
        for name in ("K", "batch", "base_level"):
            require_integer(name, owner, getattr(self, name), 1)
        if self.base_level > self.K:
            raise ValueError(f"`base_level` of {owner} must not exceed K = {self.K}. Got {self.base_level}.")
        return self

    def solver(self, problem: Problem) -> LowerSolver:
        """The lower solver on a problem."""
        return lower_of(problem, self.lower)

    def gradient(self, key: Key, problem: Problem, x: X, y: Y, xi: Xi) -> tuple[X, Cost]:
        """v at y (eq. 6)."""
        return hypergradient(key, problem, x, y, xi, inverse_of(problem, self.inverse), self.batch)

    def gradients(self, key: Key, problem: Problem, x: X, ys: Y, n: Count, xi: Xi) -> tuple[X, Cost]:
        """v at the first n of the stacked ys, with the same draws."""
        return hypergradients(key, problem, x, ys, n, xi, inverse_of(problem, self.inverse), self.batch)
