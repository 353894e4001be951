"""Runs that differ only in their seed make one group; a group has a mean and a band."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile
from typing import Any, NamedTuple

from bilevelax.core.estimate import Cost
from bilevelax.report.records import Record

COUNTS = tuple(Cost().asdict())
AXES = ("t", "seconds", *COUNTS)
DIAGNOSTICS = ("bias", "variance", "call_seconds")
CERTIFICATE = ("grad2",)
ENVIRONMENT = ("versions", "python", "platform", "devices", "x64", "date", "cpu", "cores", "load")
BOOKKEEPING = ("structure", "result", "files", "sha256", "key", "resumed_at", "out", "restart", "json")
SEED_NAMES = ("seed", "key")
MOST_POINTS = 400  # of a line: more cannot be seen

RunColumns = dict[str, list[float | None]]


class Group(NamedTuple):
    """Runs of equal settings; the lists hold one number for each step that all of them recorded."""

    name: str
    records: list[Record]
    mean: RunColumns
    low: RunColumns  # only of columns that have a band
    high: RunColumns

    @property
    def settings(self) -> dict[str, str]:
        return settings_of(self.records[0])

    @property
    def levels(self) -> dict[int, int]:
        """How often each level was drawn, by all runs together."""
        counts: Counter[int] = Counter()
        for row in (row for record in self.records for row in record.rows):
            for name, value in row.items():
                if level := re.fullmatch(r"level_(\d+)", name):
                    counts[int(level[1])] += int(value)
        return dict(sorted(counts.items()))

    def last(self, column: str) -> tuple[float, float, float] | None:
        """(mean, lowest, highest) where the column was last recorded."""
        for i, value in reversed(list(enumerate(self.mean.get(column, [])))):
            if value is not None:
                low, high = (side.get(column, self.mean[column])[i] for side in (self.low, self.high))
                return value, value if low is None else low, value if high is None else high
        return None


def group(records: list[Record]) -> list[Group]:
    """In the order in which their first runs were given."""
    members: dict[Any, list[Record]] = {}
    for record in records:
        like, copy = _likeness(record), 0
        while any(_seed(record) == _seed(other) for other in members.get((like, copy), ())):
            copy += 1  # the same seed again is not a second seed
        members.setdefault((like, copy), []).append(record)
    names = _group_names(list(members.values()))
    return [Group(name, each, *_aggregate(each)) for name, each in zip(names, members.values(), strict=True)]


def settings_of(record: Record) -> dict[str, str]:
    """All that was recorded about how a run was made, flat, without what tells seeds and machines apart."""
    left = {k: v for k, v in _config(record).items() if k not in (*ENVIRONMENT, *BOOKKEEPING, *SEED_NAMES)}
    return dict(_flat(left))


def environment_of(record: Record) -> dict[str, str]:
    return dict(_flat({name: record.manifest[name] for name in ENVIRONMENT if name in record.manifest}))


def seed_of(record: Record) -> str:
    config = _config(record)
    return str(config.get("seed", config.get("key", "")))


def metrics_of(groups: list[Group]) -> list[str]:
    """Columns that are neither axes nor diagnostics; those known at x1, the user's own, come first."""
    special = {*AXES, *DIAGNOSTICS, *CERTIFICATE}
    found: dict[str, bool] = {}
    for each in groups:
        for name, values in each.mean.items():
            if name not in special and not re.fullmatch(r"level_\d+", name) and not _is_bound(name, each.mean):
                found[name] = found.get(name, False) or values[0] is not None
    return sorted(found, key=lambda name: not found[name])


def _config(record: Record) -> dict[str, Any]:
    config = record.manifest.get("config")
    return {**record.manifest, **(config if isinstance(config, dict) else {}), "config": None}


def _seed(record: Record) -> str:
    return json.dumps([_config(record).get(name) for name in SEED_NAMES])


def _likeness(record: Record) -> str:
    """Equal for runs that differ only in their seed. Without a config the folder's name must agree, too."""
    alike = {name: record.manifest.get(name) for name in ("versions", "devices", "x64")}
    stem = "" if "config" in record.manifest else re.sub(r"[-_. ]*(seed)?[-_. =]*\d+$", "", record.name)
    return json.dumps([settings_of(record), alike, stem], sort_keys=True)


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _group_names(members: list[list[Record]]) -> list[str]:
    names: list[str] = []
    for records in members:
        first, *others = (record.name for record in records)
        common = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(first, *others, strict=False)))
        name = re.sub(r"[-_. =/]*(seed)?[-_. =/]*\d*$", "", first[:common]) if others else first
        name = name or first
        times = sum(re.sub(r" \(\d+\)$", "", other) == name for other in names)
        names.append(f"{name} ({times + 1})" if times else name)
    return names


def _aggregate(records: list[Record]) -> tuple[RunColumns, RunColumns, RunColumns]:
    by_t = [{row["t"]: row for row in record.rows} for record in records]
    shared = _thin(sorted(t for t in by_t[0] if all(t in rows for rows in by_t)))
    names = dict.fromkeys(name for rows in by_t for t in shared for name in rows[t])
    mean: RunColumns = {}
    low: RunColumns = {}
    high: RunColumns = {}
    for name in names:
        table = [_point([rows[t] for rows in by_t], name) for t in shared]
        if all(point is None for point in table):
            continue
        mean[name] = [point and point[0] for point in table]
        if name not in AXES and any(point and point[1] < point[2] for point in table):
            low[name], high[name] = ([point and point[i] for point in table] for i in (1, 2))
    return mean, low, high


def _thin(steps: list[float]) -> list[float]:
    if len(steps) <= MOST_POINTS:
        return steps
    stride = (len(steps) - 1) / (MOST_POINTS - 1)
    return [steps[round(i * stride)] for i in range(MOST_POINTS)]


def _point(rows: list[dict[str, Any]], name: str) -> tuple[float, float, float] | None:
    """(mean, lowest, highest) of one column at one step; ``name_low`` and ``name_high`` widen the band."""
    values = [_number(row.get(name)) for row in rows]
    if any(value is None for value in values):
        return None
    found = [value for value in values if value is not None]
    lows = [low for row in rows if (low := _number(row.get(f"{name}_low"))) is not None]
    highs = [high for row in rows if (high := _number(row.get(f"{name}_high"))) is not None]
    return math.fsum(found) / len(found), min(found + lows), max(found + highs)


def _number(value: Any) -> float | None:
    """Finite numbers only: the page's JSON knows no NaN."""
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if plain else None


def _is_bound(name: str, columns: RunColumns) -> bool:
    bound = re.fullmatch(r"(.+)_(low|high)", name)
    return bound is not None and bound[1] in columns
