"""Public holidays of a country as columns: the day itself, the day before it and the day after."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.base.errors import require_package

NAMES = ("holiday", "day before a holiday", "day after a holiday")
SHIFTS = (0, 1, -1)


def require_country(code: str) -> str:
    """A code such as DE, or with its part DE-BY; a sentence where the package does not know it."""
    _days(code, [2024])
    return code


def columns(when: Any, code: str) -> dict[str, np.ndarray]:
    """Name: 0 or 1 for each row."""
    days = np.asarray(when, "datetime64[D]")
    years = sorted({int(year) for year in np.unique(days.astype("datetime64[Y]").astype(int) + 1970)})
    known = _days(code, [years[0] - 1, *years, years[-1] + 1]) if years else np.zeros(0, "datetime64[D]")
    return {name: np.isin(days + shift, known) for name, shift in zip(NAMES, SHIFTS, strict=True)}


def _days(code: str, years: list[int]) -> np.ndarray:
    package = require_package("holidays", "`--holidays`", "holidays")
    country, _, part = code.partition("-")
    try:
        found = package.country_holidays(country.upper(), subdiv=part.upper() or None, years=years)
    except NotImplementedError:
        raise ValueError(
            f"`--holidays` must be a country's code such as DE, FR or US, or with a part such as DE-BY. Got {code!r}."
        ) from None
    return np.array(sorted(found), "datetime64[D]")
