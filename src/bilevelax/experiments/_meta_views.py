"""What the meta-learning figures share: reading curves back from records, tables, differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _meta as meta
from bilevelax.experiments._items import Records, Table, tuning_table
from bilevelax.experiments._statistics import Interval, mean

KINDS = {"paper": "the paper's steps", "other": "the best constant or Adam"}  # value of the column ``steps``: in words
Which = Mapping[str, Any]  # columns that pick the rows of one method and setting


def curve(records: Records, **equal: Any) -> tuple[list[int], np.ndarray]:
    """(iterations, losses of shape (seeds, iterations)) after own adaptation."""
    rows = records.where(kind="curve", **equal)
    t = sorted({row["t"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    value = {(row["seed"], row["t"]): row["own"] for row in rows}
    return t, np.array([[value[seed, time] for time in t] for seed in seeds])


def losses(records: Records, column: str, t: int | None = None, **equal: Any) -> np.ndarray:
    """Losses of the last iterate (own adaptation: or of iteration t), one for each seed.

    Columns: ``own``, ``tight`` and ``whole`` on the test, ``validation``.
    """
    if column != "own":
        return np.asarray(records.values(column, kind="end", **equal))
    times, found = curve(records, **equal)
    return found[:, -1 if t is None else times.index(t)]


def settings_of(records: Records, method: str) -> list[str]:
    return records.distinct("setting", kind="curve", method=method)


def difference(records: Records, column: str, one: Which, other: Which, t: int | None = None) -> dict[str, Interval]:
    """Loss of one minus loss of the other, paired by seed, with both kinds of steps."""
    gap = lambda steps: (
        losses(records, column, t, steps=steps, **one) - losses(records, column, t, steps=steps, **other)
    )
    return {steps: mean(gap(steps)) for steps in KINDS}


def in_words(gaps: Mapping[str, Interval]) -> str:
    """A number with each kind of steps."""
    return ", ".join(f"{gaps[steps]} with {words}" for steps, words in KINDS.items())


def below(gaps: Mapping[str, Interval], bound: float = 0.0) -> list[bool]:
    """With each kind of steps: does the whole interval lie below?"""
    return [gap.high < bound for gap in gaps.values()]


def best_setting(records: Records, method: str, steps: str, among: list[str]) -> str:
    """The one of least validation loss: the test chooses nothing."""
    return min(among, key=lambda name: losses(records, "validation", method=method, setting=name, steps=steps).mean())


def source(records: Records) -> str:
    return records.values("data", kind="end")[0]


def draw(
    records: Records,
    panel: Any,
    method: str,
    steps: str,
    label: Callable[[str], str] = str,
    only: str | None = None,
    **style: Any,
) -> None:
    """Curves with their bands of all settings of a method, from light to full, or of one of them."""
    names = [name for name in settings_of(records, method) if only in (None, name)]
    for i, setting in enumerate(names):
        t, found = curve(records, method=method, setting=setting, steps=steps)
        figures.band(panel, t, found, method, label(setting), color=figures.colour(method, i, len(names)), **style)


def same_height(panels: Any) -> None:
    """One range of losses for all."""
    ends = np.array([panel.get_ylim() for panel in panels])
    for panel in panels:
        panel.set_ylim(ends[:, 0].min(), ends[:, 1].max())


def ends_table(records: Records) -> Table:
    rows = []
    for row in records.where(kind="end", seed=0):
        which = {name: row[name] for name in ("method", "setting", "steps")}
        calls = mean([r["grad_g"] / row["t"] for r in records.where(kind="curve", t=row["t"], **which)])
        own, tight = (str(mean(losses(records, column, **which))) for column in ("own", "tight"))
        whole = str(mean(losses(records, "whole", **which))) if "whole" in row else "-"
        rule = row["rule"] + ("" if row["tuned_at"] == row["setting"] else f" (tuned at {row['tuned_at']})")
        rows.append((row["method"], row["setting"], rule, str(row["t"]), own, tight, whole, f"{calls.value:.0f}"))
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
    table = tuning_table(records, "loss", which)
    seeds = records.settings.get("tuning_seeds", 1)
    title = f"Tuning: validation loss of every step rule, mean over {seeds} seed{'s' * (seeds != 1)} of their own"
    return table._replace(title=title)


def tasks_of(records: Records) -> int:
    """Number of tasks."""
    return meta.SMALL_TASKS if records.settings["small"] else meta.ALL_TASKS
