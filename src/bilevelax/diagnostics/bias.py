"""The bias of a gradient estimate, relative to the size of the gradient's terms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevelax.base.quantiles import student
from bilevelax.base.text_table import percent
from bilevelax.diagnostics.intervals import grouped, jackknife, squared_norm

CONFIDENCE = 0.95  # of the intervals
SURE = 0.9998  # of the one by which `check` fails an estimator: it looks up to eight times


class Bias(NamedTuple):
    """A relative bias and its interval."""

    estimate: float
    low: float
    high: float
    sure: float = 0.0  # it is not below that, surely

    def decided(self, tol: float) -> bool | None:
        """Is it at most ``tol``? None where that is open; False where estimates were not finite."""
        if np.isnan(self.low) or self.low > tol:
            return False
        return True if self.high <= tol else None

    def judged(self, tol: float) -> bool | None:
        """`decided`, but False only where it is sure: for who looks often, and must not blame what is right."""
        ok = self.decided(tol)
        return None if ok is False and self.sure <= tol else ok

    def __str__(self) -> str:
        return f"{percent(self.estimate)} [{percent(self.low)}, {percent(self.high)}]"


def relative_bias(rows: np.ndarray, scale: float, stderr: float, contexts: int = 32) -> Bias:
    """|mean of the rows| / scale; ``stderr`` is the error of what the rows are compared with. Open at scale zero.

    ``contexts`` is how many numbers that error comes from: few of them may come out small together.
    """
    if not np.isfinite(rows).all():
        return Bias(float("nan"), float("nan"), float("inf"), float("nan"))
    if scale == 0:
        return Bias(float("nan"), 0.0, float("inf"))
    estimate, low, high = np.sqrt(np.maximum(squared_norm(rows, CONFIDENCE), 0.0))
    sure = np.sqrt(max(jackknife(grouped(rows), SURE)[1], 0.0)) - student(contexts, (1 + SURE) / 2) * stderr
    low, high, sure = max(low - 2 * stderr, 0.0), high + 2 * stderr, max(sure, 0.0)
    return Bias(*(float(each) / scale for each in (estimate, low, high, sure)))
