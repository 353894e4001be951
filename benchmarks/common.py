"""Shared by all benchmarks: fair timing, the machine, tables and JSON."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bilevelax.base.text_table import Table, number, show
from bilevelax.base.timing import interleaved as interleaved
from bilevelax.run.records.history import machine

RESULTS = Path(__file__).parent / "results"
KEPT = Path(__file__).parents[1] / "results" / "joint"


def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in packages)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def slug(name: str) -> str:
    """For a file's name."""
    return re.sub(r"\W+", "_", name)


def publish(name: str, title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> None:
    """Print a table and write it with the machine to results/NAME.json."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    show(Table(title, columns, [[cell(row.get(column)) for column in columns] for row in rows]))
    print(*notes, sep="\n")
    RESULTS.mkdir(exist_ok=True)
    record = {"title": title, "machine": machine(), "rows": list(rows), "notes": list(notes)}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def keep(name: str) -> None:
    """Copy a record to where it is committed: pages quote it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text((RESULTS / f"{name}.json").read_text())


def cell(value: Any) -> str:
    return number(value, 4) if isinstance(value, float | int | None) else str(value)
