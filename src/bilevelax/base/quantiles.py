"""Student's, normal and chi-square laws by SciPy, whose special functions take a tenth of a second to import."""

from __future__ import annotations

from typing import Any


def student(freedom: int, p: float) -> float:
    """The quantile at p."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


def normal_below(x: Any) -> Any:
    from scipy.special import ndtr

    return ndtr(x)


def chi_square_above(freedom: int, x: float) -> float:
    from scipy.special import chdtrc

    return float(chdtrc(freedom, x))
