"""How many of some numbers carry their sum of squares?"""

from __future__ import annotations

import numpy as np

LEAST = 16  # effective ones; two cases with 7 to 11 held 38 of 43 times (`benchmarks/certificates.py`)


def participating(squares: np.ndarray) -> float:
    """How many of equal size would have the same ratio of moments."""
    scaled = squares / squares.max()
    return float(scaled.sum() ** 2 / (scaled**2).sum())
