"""docs/benchmarks.md from the records of the last runs, which are kept; what has no record stays as it was."""

from __future__ import annotations

import json
import re
from typing import Any

from common import RESULTS, cell

from bilevelax.base.text_table import Table, as_markdown

ROOT = RESULTS.parents[1]
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
KEPT = ROOT / "results" / "benchmarks"  # committed: a test compares both pages with them
MEASURED = re.compile(r"(<!-- measured: [^\n]*-->\n).*(<!-- end -->)", re.DOTALL)
HEAD = """# Measurements

Written by `python benchmarks/run.py --page` from the records of `make bench`. Every table compares within one
run, its rivals taking turns; times are medians unless a column says mean. PyTorch (eager autograd, one thread) and
Numba are benchmark-only dependencies. The README's summary comes first; [choosing an estimator](choosing.md) says
what follows from it, and where others are faster.
"""


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    return as_markdown(Table("", columns, cells)).rstrip("\n")


def write(names: tuple[str, ...]) -> None:
    """One section for each record, in the order of ``names``, among those of the page as it was."""
    keep(names)
    summary = headlines(README.read_text())
    sections = sections_of(PAGE.read_text()) | {record["title"]: section(record) for record in kept(names)}
    PAGE.write_text("\n".join([HEAD, summary, *(f"## {title}\n\n{text}" for title, text in sections.items())]))
    README.write_text(MEASURED.sub(lambda found: found[1] + summary + found[2], README.read_text()))


def keep(names: tuple[str, ...]) -> None:
    """The records of the last runs in the place of those before."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in (path for name in names for path in RESULTS.glob(f"{name}*.json")):
        (KEPT / path.name).write_text(path.read_text())


def kept(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for name in names for path in sorted(KEPT.glob(f"{name}*.json"))]


def section(record: dict[str, Any]) -> str:
    """What stands below its title."""
    machine = record["machine"]
    where = f"{machine['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, jax {machine['versions']['jax']}"
    return f"{table(record['rows'])}\n\n{' '.join([where + '.', *record['notes']])}\n"


def sections_of(page: str) -> dict[str, str]:
    """Titles and what stands below them."""
    parts = (part.split("\n\n", 1) for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    return {title: text.rstrip("\n") + "\n" for title, text in parts}


def record_of(name: str) -> dict[str, Any] | None:
    """Of one name, or of all that begin with it, their rows together."""
    records = [json.loads(path.read_text()) for path in sorted(KEPT.glob(f"{name}.json"))]
    if not records:
        return None
    newest = max(records, key=lambda record: record["machine"]["date"])
    return {**newest, "rows": [row for record in records for row in record["rows"]]}


def headlines(before: str) -> str:
    """The README's table: one line for each record that there is, or the line of before, told by how it begins."""
    makers = {
        "latency_steps": ("a step of EpochSGD", engine),
        "latency_gradients": ("one of many gradients", latency),
        "ridge": ("a whole script", ridge),
        "antithetic_*": ("squared error of a gradient", antithetic),
        "defaults": ("time x variance", defaults),
        "targets_*": ("to 1 % of the optimum", targets),
        "clients": ("an outer step with", clients),
        "newsvendor_yaz_9": ("YAZ, backlog 9", newsvendor),
    }
    lines = []
    for name, (begin, maker) in makers.items():
        record = record_of(name)
        if record:
            lines.append(f"| {begin}{maker(record['rows'])} | {record['machine']['date'][:10]} |")
        else:
            lines += [line for line in before.splitlines() if line.startswith(f"| {begin}")]
    return "\n".join(["| what | ours | instead | date |", "|---|---|---|---|", *lines, ""])


def engine(rows: list[dict[str, Any]]) -> str:
    us = rows[0]
    return f", d_y = 5120 | {us['ours']:.1f} us | native loop {us['native loop']:.1f} us"


def latency(rows: list[dict[str, Any]]) -> str:
    shown = [row for row in rows if "Danskin" not in row["what"]]
    show = lambda name: ", ".join(f"{row[name]:.2g} ms" for row in shown)
    ours = f"RT-MLMC {show('RT-MLMC ms, amortised')}; called alone {show('RT-MLMC ms, single')}"
    return f": {'; '.join(row['what'] for row in shown)} | {ours} | DL-SGD {show('DL-SGD ms, amortised')}"


def ridge(rows: list[dict[str, Any]]) -> str:
    spent = {row["way"]: f"{row['CPU s']:.1f}" for row in rows}
    told = lambda ours: ", ".join(
        f"{way.removeprefix('ours, ')} {s}" for way, s in spent.items() if ("ours" in way) == ours
    )
    return f", ridge penalties of 30 groups, 300 steps, CPU seconds | {told(True)} | {told(False)}"


def defaults(rows: list[dict[str, Any]]) -> str:
    """Of the problem on which the default was worst."""
    mine = [row for row in rows if "as it comes" in row["estimator"]]
    worst = max(mine, key=lambda row: row["/ fitted"])
    return (
        f" of a gradient, the worst of {len(mine)} problems ({worst['problem']}) | antithetic_mlmc() as it comes "
        f"{worst['/ fitted']:.1f} | with n0 and rate fitted 1"
    )


def antithetic(rows: list[dict[str, Any]]) -> str:
    """Of the one problem on which tuned RT-MLMC was nearest."""
    ratio = "error in 1 s / best antithetic"
    near = min((row for row in rows if "tuned" in row["estimator"]), key=lambda row: row[ratio])["problem"]

    def least(word: str) -> str:
        found = [row[ratio] for row in rows if row["problem"] == near and word in row["estimator"]]
        return f"{min(found):,.0f}" if min(found) >= 10 else f"{min(found):.2g}"

    others = {
        "RT-MLMC with single samples": "single samples",
        "RT-MLMC tuned": "tuned",
        "saa": "saa",
        "jaxopt": "jaxopt",
    }
    return (
        f" after 1 s, {near} (of six problems where tuned RT-MLMC is nearest) | antithetic_mlmc 1 | "
        f"{', '.join(f'{name} {least(word)}' for name, word in others.items())}"
    )


def targets(rows: list[dict[str, Any]]) -> str:
    """Of the regime in which the peer was nearest or ahead, so as not to choose the best."""
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        seconds = row["in all"] if row["in all"] is not None else float("inf")
        times.setdefault(row["regime"], {})[row["estimator"].split()[0].rstrip(",")] = seconds
    worst = min(times, key=lambda regime: times[regime].get("jaxopt", float("inf")) / times[regime]["auto"])
    show = lambda seconds: f"{seconds:.0f} s" if seconds < float("inf") else "not from every key in time"
    return (
        f", all tuning included: {worst}, the hardest of {len(times)} regimes | "
        f"auto {show(times[worst]['auto'])} | vmap of jaxopt LBFGS {show(times[worst].get('jaxopt', float('inf')))}"
    )


def clients(rows: list[dict[str, Any]]) -> str:
    few, many = rows[0], rows[-1]
    state = max(row.get("its state MB") or 0 for row in rows)
    return (
        f" {few['clients']:,} and with {many['clients']:,} clients on disk | RT-MLMC "
        f"{few['rt_mlmc ms']:.2f} and {many['rt_mlmc ms']:.2f} ms | BSVRB: {state:.0f} MB of state at 100,000"
    )


def newsvendor(rows: list[dict[str, Any]]) -> str:
    cost = {row["method"]: row for row in rows}
    ours, forest, boosted = (cost[name] for name in ("robust, penalty 0.3", "forest", "boosted quantile"))
    show = lambda row: f"{row['as seen']:.3f} / {row['heavy tails']:.3f}"
    return (
        f": relative cost, as seen / weather off | RobustNewsvendor {show(ours)} | "
        f"forest {show(forest)}, boosted quantile {show(boosted)}"
    )
