"""The linear rule of `RobustNewsvendor` with its own rates, against those of a network, which it had before.

``python benchmarks/newsvendor_linear.py`` fits on the first 60 % of a series and pays on the next 20 % (holding 1,
backlog 9). Series: four dishes of YAZ, three series of the bakery, with the columns of `newsvendor_rolling.py`; and
tables with a linear truth and noise that grows. Penalty inf, and ``"auto"`` on the tables.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import median, publish
from newsvendor_rolling import SETS, B, H, paid

from bilevelax.base.statistics import mean
from bilevelax.sklearn import RobustNewsvendor

BEFORE = {"learning_rate": 3e-3, "weight_decay": 1.0}
TABLES = 4
Series = tuple[np.ndarray, np.ndarray]


def table(seed: int, rows: int = 800) -> Series:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    return X, 20 + X @ [3.0, -2.0, 1.0, 0.0] + (1 + np.abs(X[:, 0])) * rng.gumbel(size=rows)


def kinds(quick: bool) -> Iterator[tuple[str, Any, list[Series]]]:
    tables = [table(seed) for seed in range(1 if quick else TABLES)]
    yield "tables with a linear truth", np.inf, tables
    yield "tables with a linear truth", "auto", tables
    for name in ("yaz", "bakery"):
        series = [(X, y) for _, X, y in SETS[name]()]
        yield name, np.inf, series[:1] if quick else series


def cost(X: np.ndarray, y: np.ndarray, penalty: Any, **rates: float) -> tuple[float, float]:
    """(mean cost on later days, CPU seconds)."""
    start, end, began = round(0.6 * len(y)), round(0.8 * len(y)), time.process_time()
    settings = {"policy": "linear", "conditional": "knn", "ambiguity": "wasserstein", "fallback": False}
    model = RobustNewsvendor(H, B, penalty=penalty, random_state=0, **settings, **rates).fit(X[:start], y[:start])
    return float(paid(model.predict(X[start:end]), y[start:end]).mean()), time.process_time() - began


def run(quick: bool = False) -> None:
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    notes = ["ratio: geometric mean of the cost over the cost before, with its 95 % interval over series."]
    for name, penalty, series in kinds(quick):
        before, now = ([cost(X, y, penalty, **rates) for X, y in series] for rates in (BEFORE, {}))
        logs = np.log([new[0] / old[0] for old, new in zip(before, now, strict=True)])
        told = mean(logs) if len(logs) > 1 else (logs.mean(), np.nan, np.nan)
        ratio = {key: float(np.exp(part)) for key, part in zip(("ratio", "low", "high"), told, strict=True)}
        counts = {"series": len(series), "of them cheaper": int((logs < 0).sum())}
        seconds = {"CPU s before": median([c for _, c in before]), "CPU s now": median([c for _, c in now])}
        rows.append({"set": name, "penalty": str(penalty), **counts, **ratio, **seconds})
        publish("newsvendor_linear", "The linear rule with its own rates", rows, notes)


if __name__ == "__main__":
    run("--quick" in sys.argv)
