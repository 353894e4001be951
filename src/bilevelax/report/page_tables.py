"""The tables of the page, as data: what stands in a cell, how it sorts, how long its bar is."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from bilevelax.base.text_table import NO_VALUE, number
from bilevelax.report.compare import (
    CERTIFICATE,
    COUNTS,
    DIAGNOSTICS,
    Group,
    environment_of,
    seed_of,
)
from bilevelax.report.records import Record

DIGITS = 4


class PageCell(NamedTuple):
    text: str
    value: float | None = None  # what it sorts by, if not by its text
    share: float | None = None  # length of a bar, 0 to 1
    note: str = ""  # small print: the range
    numeric: bool = False  # set to the right


class PageLine(NamedTuple):
    cells: list[PageCell]
    differs: bool = False


class PageTable(NamedTuple):
    caption: str
    columns: list[str]
    lines: list[PageLine]


def all_tables(groups: list[Group], metrics: list[str]) -> dict[str, PageTable]:
    records = [record for group in groups for record in group.records]
    return {
        "summary": summary(groups, metrics),
        "cost": cost(groups),
        "diagnostics": last_values("Last measurement of the estimator", groups, DIAGNOSTICS),
        "certificate": last_values("Last certificate of |grad F(x)|²", groups, CERTIFICATE),
        "levels": levels(groups),
        "settings": side_by_side("setting", {group.name: group.settings for group in groups}),
        "runs": runs(groups),
        "environment": environments(records),
    }


def summary(groups: list[Group], metrics: list[str]) -> PageTable:
    shown = ["t", "seconds", *metrics]
    lines = [
        PageLine([PageCell(group.name), _figure(len(group.records)), *(_last(group, n) for n in shown)])
        for group in groups
    ]
    return PageTable("Where the runs ended", ["run", "seeds", "iterations", "seconds", *metrics], lines)


def last_values(caption: str, groups: list[Group], names: tuple[str, ...]) -> PageTable:
    shown = [name for name in names if any(name in group.mean for group in groups)]
    lines = [PageLine([PageCell(group.name), *(_last(group, name) for name in shown)]) for group in groups]
    return PageTable(caption, ["run", *shown], lines)


def cost(groups: list[Group]) -> PageTable:
    """Oracle calls of a whole run, with bars against the largest of each column."""
    columns = ("seconds", "compile_seconds", *COUNTS)
    totals = [[_total(group, name) for name in columns] for group in groups]
    most = [max((value or 0.0 for value in column), default=0.0) for column in zip(*totals, strict=True)]
    lines = [
        PageLine(
            [
                PageCell(group.name),
                *(
                    _figure(value)._replace(share=value / top if value is not None and top > 0 else None)
                    for value, top in zip(row, most, strict=True)
                ),
            ]
        )
        for group, row in zip(groups, totals, strict=True)
    ]
    return PageTable("Cost of one run, mean over its seeds", ["run", *columns], lines)


def levels(groups: list[Group]) -> PageTable:
    drawn = sorted({level for group in groups for level in group.levels})
    with_levels = [group for group in groups if group.levels]
    lines = []
    for group in with_levels:
        total = sum(group.levels.values())
        counts = [group.levels.get(level, 0) for level in drawn]
        cells = [_figure(n)._replace(note=f"{n / total:.2%}") for n in counts]
        lines.append(PageLine([PageCell(group.name), *cells]))
    return PageTable("Estimates at each level", ["run", *(f"level {level}" for level in drawn)], lines)


def side_by_side(what: str, columns: dict[str, dict[str, str]]) -> PageTable:
    """One line a setting, one column a run; lines in which the runs differ are marked."""
    lines = []
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        values = [column.get(name, NO_VALUE) for column in columns.values()]
        lines.append(PageLine([PageCell(name), *map(PageCell, values)], differs=len(set(values)) > 1))
    return PageTable(f"Each {what}, side by side; marked where runs differ", [what, *columns], lines)


def environments(records: list[Record]) -> PageTable:
    """As `side_by_side`, with one column for all runs of equal environment; the dates are with the runs."""
    alike: dict[str, list[Record]] = {}
    for record in records:
        told = {name: value for name, value in environment_of(record).items() if name not in ("date", "load")}
        alike.setdefault(json.dumps(told), []).append(record)
    names = ["all runs"] if len(alike) == 1 else [_few([record.name for record in each]) for each in alike.values()]
    return side_by_side("property", {name: json.loads(told) for name, told in zip(names, alike, strict=True)})


def _few(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def runs(groups: list[Group]) -> PageTable:
    """Every run on its own: which line it is part of, its seed and how far it came."""
    lines = []
    for group in groups:
        for record in group.records:
            last = record.rows[-1]
            cells = [
                PageCell(record.name),
                PageCell(group.name),
                PageCell(seed_of(record)),
                _figure(last["t"]),
                _figure(last.get("seconds")),
                _figure(_compile_seconds(record)),
                PageCell(str(record.manifest.get("date", NO_VALUE))),
            ]
            lines.append(PageLine(cells))
    return PageTable("All runs", ["run", "line", "seed", "iterations", "seconds", "compile_seconds", "date"], lines)


def _last(group: Group, name: str) -> PageCell:
    found = group.last(name)
    if found is None:
        return _figure(None)
    value, low, high = found
    return _figure(value)._replace(note=f"{number(low, DIGITS)} to {number(high, DIGITS)}" if low < high else "")


def _figure(value: float | None) -> PageCell:
    return PageCell(number(value, DIGITS), value, numeric=True)


def _total(group: Group, name: str) -> float | None:
    if name == "compile_seconds":
        found: list[Any] = [_compile_seconds(record) for record in group.records]
    else:
        found = [record.rows[-1].get(name) for record in group.records]
    return None if None in found else sum(found) / len(found)


def _compile_seconds(record: Record) -> float | None:
    result = record.manifest.get("result")
    return result.get("compile_seconds") if isinstance(result, dict) else None
