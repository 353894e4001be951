"""What the meta-learning figures share: reading curves back from records, tables, differences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bilevelax.experiments import _figures as figures
from bilevelax.experiments._items import Records, Table, tuning_table
from bilevelax.experiments._meta import QUIET
from bilevelax.experiments._statistics import Interval, mean, number


def curve(records: Records, **equal: Any) -> tuple[list[int], np.ndarray]:
    """(iterations, losses of shape (seeds, iterations)) after own adaptation."""
    rows = records.where(kind="curve", **equal)
    t = sorted({row["t"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    value = {(row["seed"], row["t"]): row["own"] for row in rows}
    return t, np.array([[value[seed, time] for time in t] for seed in seeds])


def ends(records: Records, column: str, **equal: Any) -> np.ndarray:
    """Losses of the last iterate, one for each seed: ``own``, ``tight`` or ``whole`` adaptation."""
    if column != "own":
        return np.asarray(records.values(column, kind="end", **equal))
    return curve(records, **equal)[1][:, -1]


def settings_of(records: Records, method: str) -> list[str]:
    return records.distinct("setting", kind="curve", method=method, steps="paper")


def difference(records: Records, column: str, one: dict[str, Any], other: dict[str, Any]) -> Interval:
    """Loss of one minus loss of the other, paired by seed."""
    return mean(ends(records, column, steps="paper", **one) - ends(records, column, steps="paper", **other))


def spreads(records: Records, which: Iterable[dict[str, Any]]) -> str:
    """How much the seeds differ in the loss of the last iterate, until y*."""
    found = {
        f"{one['method']} {one['setting']}": ends(records, "tight", **{"steps": "paper", **one}).std(ddof=1)
        for one in which
    }
    return ", ".join(f"{name} {number(float(value))}" for name, value in found.items())


def source(records: Records) -> str:
    return records.values("data", kind="end")[0]


def draw_other(records: Records, panel: Any, method: str) -> None:
    """The best constant or Adam variant, dashed."""
    for row in records.where(kind="end", method=method, steps="other", seed=0):
        t, losses = curve(records, method=method, setting=row["setting"], steps="other")
        figures.band(panel, t, losses, method, f"{row['setting']}, {row['rule']}", linestyle="dashed")


def draw_quiet(records: Records, panel: Any) -> None:
    """RT-MLMC with less noise, where it was run."""
    for row in records.where(kind="end", method=QUIET, steps="paper", seed=0):
        t, losses = curve(records, method=QUIET, setting=row["setting"], steps="paper")
        figures.band(panel, t, losses, QUIET, f"{row['setting']}, less noise", linestyle="dashdot")


def ends_table(records: Records) -> Table:
    rows = []
    for row in records.where(kind="end", seed=0):
        which = {name: row[name] for name in ("method", "setting", "steps")}
        t, losses = curve(records, **which)
        calls = mean([r["grad_g"] / t[-1] for r in records.where(kind="curve", t=t[-1], **which)])
        tight = mean(ends(records, "tight", **which))
        whole = str(mean(ends(records, "whole", **which))) if "whole" in row else "-"
        cells = (row["rule"], str(t[-1]), str(mean(losses[:, -1])), str(tight), whole, f"{calls.value:.0f}")
        rows.append((row["method"], row["setting"], *cells))
    columns = (
        "method",
        "",
        "steps",
        "T",
        "test loss, own adaptation",
        "until y*",
        "own steps, all images",
        "lower gradients / iteration",
    )
    return Table("Test loss of the last iterate", columns, rows)


def tuning(records: Records, *more: str) -> Table:
    """Validation losses of all step rules, by method, setting and these columns."""
    which: dict[str, dict[str, Any]] = {}
    for row in records.where(kind="tuning"):
        where = {name: row[name] for name in ("method", "setting", *more)}
        further = "".join(f", {name} = {row[name]}" for name in more)
        which[f"{row['method']}, {row['setting']}{further}"] = where
    return tuning_table(records, "loss", which)
