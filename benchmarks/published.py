"""Ours beside a published number and the best simple baseline: records that are committed, and docs/applications.md.

A benchmark of an application ends with `compared`; ``python benchmarks/run.py --page`` writes the page's table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common import publish

from bilevelax.base.text_table import Table, as_markdown
from bilevelax.run.records.history import machine

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "results" / "applications", ROOT / "docs" / "applications.md"
TABLE = re.compile(r"(<!-- published: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


class Row(NamedTuple):
    """One task; each cell a number with its interval or standard error, and whose it is."""

    task: str  # what is measured, smaller or larger is better, sizes
    published: str  # with its source; "none found" where there is none
    ours: str
    baseline: str  # the best simple one, named
    seconds: float  # of the whole command at this scale


def compared(name: str, title: str, rows: Sequence[Row], notes: Sequence[str] = (), *, quick: bool = False) -> None:
    """Print the table; keep it for the page unless it is a quick run.

    Args:
        name: of the application and of the command ``python benchmarks/run.py NAME``.
        title: what a person of the field would call it.
        rows: one a task.
        notes: sentences on seeds, splits, what was tuned and on what.
        quick: few repeats: shown, not kept.
    """
    publish(f"published_{name}", title, [row._asdict() for row in rows], notes)
    if quick:
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"title": title, "machine": machine(), "rows": [r._asdict() for r in rows]}
    (KEPT / f"{name}.json").write_text(json.dumps(record | {"notes": list(notes)}, indent=2) + "\n")


def page(before: str) -> str:
    """docs/applications.md with the tables of all records that are kept, an application each."""
    parts = []
    for path in sorted(KEPT.glob("*.json")):
        record = json.loads(path.read_text())
        cells = [list(map(shown, row.values())) for row in record["rows"]]
        head = f"### {record['title']}\n\n`python benchmarks/run.py {path.stem}`, {record['machine']['date'][:10]}.\n"
        parts += [head, as_markdown(Table("", [*Row._fields[:-1], "CPU s"], cells))]
    text = "\n".join(parts)
    return TABLE.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", before)


def write() -> None:
    PAGE.write_text(page(PAGE.read_text()))


def shown(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float | int) else str(value)
