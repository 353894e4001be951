"""The bias of a gradient estimate, relative to the size of the gradient's terms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevelax.base.text_table import percent
from bilevelax.diagnostics.intervals import squared_norm

CONFIDENCE = 0.95  # of the intervals


class Bias(NamedTuple):
    """A relative bias and its interval."""

    estimate: float
    low: float
    high: float

    def decided(self, tol: float) -> bool | None:
        """Is it at most ``tol``? None where that is open; False where estimates were not finite."""
        if np.isnan(self.low) or self.low > tol:
            return False
        return True if self.high <= tol else None

    def __str__(self) -> str:
        return f"{percent(self.estimate)} [{percent(self.low)}, {percent(self.high)}]"


def relative_bias(rows: np.ndarray, scale: float, stderr: float) -> Bias:
    """|mean of the rows| / scale; ``stderr`` is the error of what the rows are compared with. Open at scale zero."""
    if not np.isfinite(rows).all():
        return Bias(float("nan"), float("nan"), float("inf"))
    if scale == 0:
        return Bias(float("nan"), 0.0, float("inf"))
    estimate, low, high = np.sqrt(np.maximum(squared_norm(rows, CONFIDENCE), 0.0))
    return Bias(estimate / scale, max(low - 2 * stderr, 0.0) / scale, (high + 2 * stderr) / scale)
