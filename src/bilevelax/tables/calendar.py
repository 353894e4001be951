"""What a date tells: weekday, month, a smooth day of the year, and how long after the first day it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.base.declared import list_of, one_of, record, text
from bilevelax.base.sentences import counted
from bilevelax.datasets.demand import WEEKDAYS

Calendar = dict[str, Any]  # as stored in a model

DAY = text(r"\d{4}-\d{2}-\d{2}", "a day such as 2024-12-31")
YES_NO = one_of(True, False)
DECLARED = record(
    {"season": YES_NO, "trend": YES_NO, "start": DAY, "last": DAY, "months": list_of(one_of(*range(1, 13)))}
)
HARMONICS = (1, 2)  # a year, and half of it
YEAR = 365.2425
CHOICES: dict[str, dict[str, bool]] = {
    "plain": {"season": False, "trend": False},
    "season": {"season": True, "trend": False},
    "trend": {"season": True, "trend": True},
}


def learn_calendar(when: Any, choice: str) -> Calendar:
    """What to make of dates like these; ``choice`` is one of `CHOICES`."""
    if choice not in CHOICES:
        raise ValueError(f"`--dates` must be {', '.join(CHOICES)} or auto. Got {choice!r}.")
    months = sorted(int(month) for month in when.dt.month.unique())
    days = {"start": f"{when.min():%Y-%m-%d}", "last": f"{when.max():%Y-%m-%d}"}
    return {**CHOICES[choice], **days, "months": months}


def names(calendar: Calendar | None) -> list[str]:
    """Of the columns; a model of 0.1.0 has weekday and month only."""
    found = [f"weekday={day}" for day in WEEKDAYS] + [f"month={m}" for m in range(1, 13)]
    if calendar and calendar["season"]:
        found += [f"year {wave} {k}" for k in HARMONICS for wave in ("sine", "cosine")]
    return [*found, "years"] if calendar and calendar["trend"] else found


def columns(when: Any, calendar: Calendar | None) -> dict[str, Any]:
    """Name: values. Rules do not extrapolate: beyond the last day of training the trend stays as it was there."""
    made: dict[str, Any] = {f"weekday={day}": when.dt.day_of_week == i for i, day in enumerate(WEEKDAYS)}
    made |= {f"month={m}": when.dt.month == m for m in range(1, 13)}
    if calendar and calendar["season"]:
        angle = 2 * np.pi * when.dt.day_of_year.to_numpy(float) / YEAR
        for k in HARMONICS:
            made |= {f"year sine {k}": np.sin(k * angle), f"year cosine {k}": np.cos(k * angle)}
    if calendar and calendar["trend"]:
        made["years"] = (when - np.datetime64(calendar["start"])).dt.days.to_numpy(float) / YEAR
    return made


def described(calendar: Calendar | None) -> str:
    if not calendar or not calendar["season"]:
        return "weekday and month"
    return "weekday, month, smooth day of the year" + (" and trend" if calendar["trend"] else "")


def unseen(when: Any, calendar: Calendar | None, name: str) -> list[str]:
    """Months and years that the model has not seen, and how far after its last day the rows are."""
    if not calendar:
        return []
    first, final = (int(calendar[end][:4]) for end in ("start", "last"))
    notes = _named(when.dt.month, ~when.dt.month.isin(calendar["months"]), "months", name)
    notes += _named(when.dt.year, ~when.dt.year.between(first, final), "years", name)
    late = (when.max() - np.datetime64(calendar["last"])).days
    if late > YEAR / 4:
        notes.append(f"{name}: the last row is {late} days after the last day of training; fit again with newer rows")
    return notes


def _named(parts: Any, new: Any, word: str, name: str) -> list[str]:
    if not new.any():
        return []
    rows, found = counted(int(new.sum()), "row is", "rows are"), sorted(map(int, parts[new].unique()))
    return [f"{name}: {rows} in {word} not seen in training ({', '.join(map(str, found))})"]
