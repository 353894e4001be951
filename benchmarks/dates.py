"""``python benchmarks/dates.py [yaz] [bakery]``: what dates are good for, by the cost of the command line's own orders.

Every series is cut in time: fit on the first three quarters, cost on the rest, divided by mean demand (holding 1,
backlog 9). Rows: what `newsvendor fit --dates` makes of the dates; the forest gets the same columns.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.cli import _newsvendor_work as work
from bilevelax.sklearn.baselines import WeightedSampleAverage
from bilevelax.tables.calendar import CHOICES
from bilevelax.tables.csv_files import read_table
from bilevelax.tables.demands import targets_of

H, B, SERIES, STEPS = 1.0, 9.0, 5, 400


def yaz() -> Iterator[tuple[str, Any, list[str]]]:
    from bilevelax.datasets import load_yaz

    data = load_yaz()
    table = data.table.drop(columns=["weekday", "month", "year", "is_closed"])
    for dish in data.y:
        yield dish, table.join(data.y[[dish]]), [dish]


def bakery() -> Iterator[tuple[str, Any, list[str]]]:
    from bilevelax.datasets import load_bakery

    data = load_bakery()
    names = [name for name in ("store", "product") if name in data.table]
    whole = data.table.assign(demand=np.asarray(data.y).reshape(len(data.table), -1)[:, 0])
    for i, (key, rows) in enumerate(whole.groupby(names, sort=True)):
        if i == SERIES:
            return
        dates = [name for name in ("weekday", "month", "year", "is_closed") if name in rows]
        yield f"bakery {key}", rows.drop(columns=[*names, *dates]), ["demand"]


def cost_of(orders: Any, y: np.ndarray) -> float:
    over = np.asarray(orders).reshape(y.shape) - y
    return float(np.where(over > 0, H * over, -B * over).mean() / y.mean())


def costs(table: Any, targets: list[str], dates: str, folder: Path) -> tuple[float, float]:
    """(our relative cost, the forest's with the same columns)"""
    cut = round(0.75 * len(table))
    table[:cut].to_csv(folder / "past.csv", index=False)
    table[cut:].to_csv(folder / "later.csv", index=False)
    past = work.read_past(folder / "past.csv", ",".join(targets), None, dates=dates)
    settings = {"holding_cost": H, "backlog_cost": B, "penalty": 1.0, "max_iter": STEPS, "random_state": 0}
    rule = work.learn(past, None, **settings)[0]
    later, y = targets_of(read_table(folder / "later.csv"), targets, "later.csv")[:2]
    X = past.schema.encode(later, "later.csv")[0]
    forest = WeightedSampleAverage(H, B, random_state=0).fit(past.X.to_numpy(float), past.y)
    return cost_of(rule.predict(X), y), cost_of(forest.predict(X.to_numpy(float)), y)


def main(names: list[str]) -> None:
    print(f"{'series':24} {'dates':7} {'ours':>7} {'forest':>7}")
    means: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for maker in [maker for maker in (yaz, bakery) if not names or maker.__name__ in names]:
            for series, table, targets in maker():
                for dates in CHOICES:
                    ours, forest = costs(table, targets, dates, Path(folder))
                    means.setdefault(dates, []).append((ours, forest))
                    print(f"{series[:24]:24} {dates:7} {ours:7.3f} {forest:7.3f}", flush=True)
    for dates, both in means.items():
        ours, forest = np.exp(np.log(both).mean(axis=0))
        print(f"{'geometric mean':24} {dates:7} {ours:7.3f} {forest:7.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
