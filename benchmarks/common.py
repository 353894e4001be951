"""Shared by all benchmarks: fair timing, the machine, tables and JSON."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from bilevelax.history import machine

RESULTS = Path(__file__).parent / "results"


def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in packages)


def interleaved(calls: Mapping[str, Callable[[int], Any]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of each call in each round; the calls take turns, so a busy machine slows all of them alike."""
    for call in calls.values():
        for i in range(warm_up):
            jax.block_until_ready(call(i))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            jax.block_until_ready(call(warm_up + i))
            seconds[name].append(time.perf_counter() - started)
    return seconds


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def slug(name: str) -> str:
    """For a file's name."""
    return re.sub(r"\W+", "_", name)


def publish(name: str, title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> None:
    """Print a table and write it with the machine to results/NAME.json."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0].get(column), str) else "right")
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    console = Console(width=140)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)
    RESULTS.mkdir(exist_ok=True)
    record = {"title": title, "machine": machine(), "rows": list(rows), "notes": list(notes)}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
