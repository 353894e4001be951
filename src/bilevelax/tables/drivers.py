"""Encoded columns by the thing that they tell of, in a planner's words: what an order is explained by."""

from __future__ import annotations

from typing import Any

from bilevelax.tables import calendar, holidays, lags, series
from bilevelax.tables.words import MISSING_CATEGORY


def groups(schema: Any) -> dict[str, list[int]]:
    """Name: places among the encoded columns. A date tells of weekday, season, years and holidays, each by itself."""
    place = {name: i for i, name in enumerate(schema.features())}
    found: dict[str, list[int]] = {}
    dated = calendar.names(schema.calendar) if schema.date else []
    for name in dated:
        kind = "weekday" if name.startswith("weekday=") else "trend" if name == "years" else "time of year"
        found.setdefault(kind, []).append(place[name])
    if schema.holidays:
        found["holidays"] = [place[name] for name in holidays.NAMES]
    ids = set(schema.series["ids"]) if schema.series else set()
    for name, how in schema.columns.items():
        gaps = [f"{name}={MISSING_CATEGORY}"] if how["kind"] == "number" and how["gaps"] else []
        own = [name, *gaps] if how["kind"] == "number" else [f"{name}={value}" for value in how["values"]]
        found.setdefault("product" if name in ids else name, []).extend(place[each] for each in own)
    if schema.series:
        found.setdefault("product", []).extend(
            place[each] for each in (series.LEVEL, *series.cost_columns(schema.series))
        )
    if schema.lags:
        found["past demand"] = [place[name] for name in lags.names(schema.lags, schema.targets)]
    return found


def value_of(name: str, schema: Any, table: Any, when: Any, row: int) -> str:
    """What a driver is on a row: Saturday, rain 3.5."""
    if name == "weekday":
        return str(when.dt.day_name().iloc[row])
    if name in ("time of year", "trend"):
        return f"{when.iloc[row]:%d %B}" if name == "time of year" else f"{when.iloc[row]:%Y}"
    if name == "holidays":
        told = holidays.columns(when.iloc[[row]], schema.holidays)
        return next((kind for kind, there in told.items() if there[0]), "no holiday")
    if name == "product" and schema.series:
        return str(series.names_of(schema.series["ids"], table.iloc[[row]])[0])
    return f"{table[name].iloc[row]}" if name in table.columns else ""
