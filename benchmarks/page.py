"""docs/benchmarks.md from the records of the last runs."""

from __future__ import annotations

import json
from typing import Any

from common import RESULTS, cell

PAGE = RESULTS.parents[1] / "docs" / "benchmarks.md"
HEAD = """# Measurements

Written by `python benchmarks/run.py --page` from the records of `make bench`. Every table compares within one
run, its rivals taking turns; times are medians unless a column says mean. PyTorch (eager autograd, one thread) and
Numba are benchmark-only dependencies.
"""


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def write(names: tuple[str, ...]) -> None:
    """One section for each record that there is, in the order of ``names``."""
    parts = [HEAD]
    records = [json.loads(path.read_text()) for name in names for path in sorted(RESULTS.glob(f"{name}*.json"))]
    for record in records:
        machine = record["machine"]
        where = f"{machine['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, jax {machine['versions']['jax']}"
        parts.append(
            f"## {record['title']}\n\n{table(record['rows'])}\n\n{' '.join([where + '.', *record['notes']])}\n"
        )
    PAGE.write_text("\n".join(parts))
