"""One way to learn a rule, in words and numbers: what a search chooses among and a model's folder tells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SEARCHED = 8_000  # rows, evenly spaced, that the search sees
MOST_ROWS = 100_000  # rows of the problem; of more, a random subsample


LINEAR, BOOSTED = "linear quantile", "boosted quantile"
RIVALS = ("quantile", LINEAR, "neighbours", "forest", BOOSTED)  # may order instead of a rule; the simplest first
SLOW = (LINEAR, BOOSTED)  # take minutes and gigabytes for a million rows
BLEND = "mean of forest and rule"  # and so may this


class Candidate(NamedTuple):
    """``penalty`` inf without ``noise`` is no ambiguity at all."""

    policy: Any
    conditional: Any
    penalty: float
    noise: float | None = None  # of an entropic adversary

    @property
    def ambiguity(self) -> str | None:
        return "entropic" if self.noise is not None else None if np.isinf(self.penalty) else "wasserstein"

    def told(self) -> dict[str, Any]:
        names = {name: each if isinstance(each, str) else repr(each) for name, each in self._asdict().items()}
        return names | {"ambiguity": self.ambiguity, "penalty": self.penalty, "noise": self.noise}
