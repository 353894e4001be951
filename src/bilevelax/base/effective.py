"""How many of some numbers carry their sum of squares, how many should, and what is not told from rounding?"""

from __future__ import annotations

import numpy as np

LEAST = 16  # effective ones; two cases with 7 to 11 held 38 of 43 times (`benchmarks/certificates.py`)
ROUNDING = 100  # times eps: numbers that differ by less, relative to their size, are alike


def participating(squares: np.ndarray) -> float:
    """How many of equal size would have the same ratio of moments."""
    scaled = squares / squares.max()
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def least_of(n: int) -> float:
    """So many of n must carry the noise for an interval: 16, or a sixteenth of them where they are few."""
    return min(LEAST, n / LEAST)
