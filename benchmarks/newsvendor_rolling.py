"""``python benchmarks/newsvendor_rolling.py [SET ...]``: rolling origins against tuned rivals with the same columns.

Sets: yaz (4 dishes), bakery (3 series); of wheels, bikes (rentals a day, ISLP), water (flow an hour, river), passengers
(of airlines a month, river): ``pip install --no-deps ISLP==0.6.0 river==0.26.1``. The last two fifths of every series
are cut into origins: fit on all that came before, pay on the block (holding 1, backlog 9). Everyone gets the same
columns: weather, weekday, season, trend, past demand known a week (of hours: a day, of months: a year) ahead.

Ours is `RobustNewsvendor` as it comes. A rival is tuned at each origin on two later stretches of the training rows.
Cells are kept in benchmarks/results/newsvendor_rolling.json: a run that was interrupted goes on. ``table`` prints what
is there, ``keep`` also makes it the record behind docs/newsvendor.md. Set OMP_NUM_THREADS=1 on a busy machine, where
threads of the boosted rivals wait for each other.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.applications.newsvendor.loss import newsvendor_cost
from bilevelax.datasets import load_bakery, load_yaz
from bilevelax.sklearn import LinearQuantile, RobustNewsvendor, WeightedSampleAverage
from bilevelax.sklearn._choosing import rolling_splits
from bilevelax.sklearn.conditional import Forest
from bilevelax.tables.calendar import columns, learn_calendar

H, B, TESTED = 1.0, 9.0, 0.4
ORIGINS = 2
CELLS = Path(__file__).parent / "results" / "newsvendor_rolling.json"
RECORD = Path(__file__).parents[1] / "results" / "newsvendor" / "rolling.json"
RIVALS = ("forest", "boosted", "linear")
MOST_LINEAR = 5_000  # rows; linear programs of more take minutes
Series = tuple[str, np.ndarray, np.ndarray]  # name, contexts, demand


def design(when: Any, others: Any, y: np.ndarray, lags: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(contexts, demand): dates, what is known beforehand, demand so many rows before and its mean over as many."""
    import pandas as pd

    when, past = pd.Series(np.asarray(when)), pd.Series(y)
    X = pd.DataFrame({**columns(when, learn_calendar(when, "trend"))}).astype(float)
    for k in lags:
        X[f"lag {k}"], X[f"mean {k}"] = past.shift(k), past.shift(lags[0]).rolling(k).mean()
    if len(others):
        X = pd.concat([X, pd.get_dummies(pd.DataFrame(others).reset_index(drop=True), dtype=float)], axis=1)
    X = X.loc[:, X.nunique() > 1]
    known = X.notna().all(axis=1).to_numpy()
    return X[known].to_numpy(float), y[known]


def yaz() -> Iterator[Series]:
    data = load_yaz()
    others = data.table.drop(columns=["date", "weekday", "month", "year", "is_closed"], errors="ignore")
    for dish in list(data.y)[::2]:
        yield dish, *design(_when(data.table["date"]), others, data.y[dish].to_numpy(float), (7, 28))


def bakery() -> Iterator[Series]:
    whole = load_bakery()
    table = whole.table.assign(demand=np.asarray(whole.y).reshape(len(whole.table), -1)[:, 0])
    for i, (key, rows) in enumerate(table.groupby(["store", "product"], sort=True)):
        if i in (0, 4, 8):  # three stores, all products
            drop = ["date", "store", "product", "demand", "weekday", "month", "year", "is_closed"]
            others = rows.drop(columns=[name for name in drop if name in rows])
            yield str(key), *design(_when(rows["date"]), others, rows["demand"].to_numpy(float), (7, 28))


def _when(column: Any) -> Any:
    import pandas as pd

    return pd.to_datetime(column).reset_index(drop=True)


def _inside(package: str, *parts: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise SystemExit(f"{package} is not installed: pip install --no-deps ISLP==0.6.0 river==0.26.1")
    return Path(found.submodule_search_locations[0], *parts)


def _bikeshare() -> Any:
    import pandas as pd

    table = pd.read_csv(_inside("ISLP", "data", "Bikeshare.csv"))
    day = pd.to_datetime("2011-01-01") + pd.to_timedelta(table["day"] - 1, unit="D")
    return table.assign(date=day)


WEATHER = ["temp", "atemp", "hum", "windspeed"]


def bikes() -> Iterator[Series]:
    by = _bikeshare().groupby("date")
    others = by[["holiday", "workingday", *WEATHER]].mean()
    yield "bikers", *design(others.index, others, by["bikers"].sum().to_numpy(float), (7, 28))


def passengers() -> Iterator[Series]:
    import pandas as pd

    table = pd.read_csv(_inside("river", "datasets", "airline-passengers.csv"))
    yield "seats", *design(pd.to_datetime(table.iloc[:, 0]), {}, table.iloc[:, 1].to_numpy(float), (12,))


def water() -> Iterator[Series]:
    import pandas as pd

    table = pd.read_csv(_inside("river", "datasets", "water-flow.csv"))
    when = pd.to_datetime(table["Time"].str[:19])
    y = table.iloc[:, 1].to_numpy(float)
    yield "flow", *design(when.dt.normalize(), {"hour": when.dt.hour.astype(str)}, y, (24, 168))


SETS: dict[str, Callable[[], Iterator[Series]]] = {
    each.__name__: each for each in (yaz, bakery, bikes, water, passengers)
}


def forests() -> Iterator[Any]:
    for leaf, features in product((5, 15), (1 / 3, 1.0)):
        forest = Forest(min_samples_leaf=leaf, max_features=features)
        yield WeightedSampleAverage(H, B, conditional=forest, random_state=0)


def boosts() -> Iterator[Any]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    for leaves, trees in product((7, 31), (60, 200)):
        yield HistGradientBoostingRegressor(
            loss="quantile",
            quantile=B / (H + B),
            learning_rate=0.05,
            max_leaf_nodes=leaves,
            max_iter=trees,
            random_state=0,
        )


def linears() -> Iterator[Any]:
    for alpha in (1e-4, 1e-3, 1e-2, 1e-1):
        yield LinearQuantile(H, B, alpha=alpha)


def paid(orders: np.ndarray, y: np.ndarray) -> np.ndarray:
    return newsvendor_cost(np.maximum(orders, 0), y, H, B)


def tuned(candidates: Iterator[Any], X: np.ndarray, y: np.ndarray) -> Any:
    """The cheapest on two later stretches, fitted on all rows."""
    splits = rolling_splits(len(y), 0.2)
    cost = lambda each: sum(paid(each.fit(X[a], y[a]).predict(X[b]), y[b]).sum() for a, b in splits)
    return min(candidates, key=cost).fit(X, y)


def cell(X: np.ndarray, y: np.ndarray, start: int, end: int) -> dict[str, Any]:
    """Costs of everyone on rows start to end, and how often ours covered demand."""
    past, held = slice(start), slice(start, end)
    ours = RobustNewsvendor(H, B, random_state=0).fit(X[past], y[past])
    orders = {"ours": ours.predict(X[held])}
    ways = {"forest": forests, "boosted": boosts} | ({"linear": linears} if start <= MOST_LINEAR else {})
    orders |= {name: tuned(make(), X[past], y[past]).predict(X[held]) for name, make in ways.items()}
    found: dict[str, Any] = {name: float(paid(w, y[held]).mean()) for name, w in orders.items()}
    found["service"] = {name: float((w >= y[held]).mean()) for name, w in orders.items()}
    return found | {"rows": start, "held": end - start, "chose": ours.fallback_ or ours.chosen_["conditional"]}


def remembered() -> dict[str, Any]:
    return json.loads(CELLS.read_text()) if CELLS.exists() else {}


def run(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    for name in names:
        for series, X, y in SETS[name]():
            first = round((1 - TESTED) * len(y))
            edges = np.linspace(first, len(y), ORIGINS + 1).astype(int)
            for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                place = f"{name} | {series} | {start}"
                if place not in remembered():
                    found = cell(X, y, start, end)
                    CELLS.parent.mkdir(exist_ok=True)
                    CELLS.write_text(json.dumps({**remembered(), place: found}, indent=1))
                    print(place, found, flush=True)


def ratio(cells: list[dict[str, Any]], rival: str) -> tuple[float, float, float]:
    """Geometric mean of our cost over the rival's, with a 95 % bootstrap interval over cells."""
    logs = np.log([each["ours"] / each[rival] for each in cells if rival in each])
    if not len(logs):
        return (float("nan"),) * 3
    again = np.random.default_rng(0).choice(logs, (2000, len(logs))).mean(axis=1)
    mean, low, high = map(float, np.exp([logs.mean(), *np.quantile(again, (0.025, 0.975))]))
    return mean, low, high


def table(cells: dict[str, Any]) -> list[str]:
    """The lines of the table: a row for each set."""
    by = {name: [v for place, v in cells.items() if place.split(" | ")[0] == name] for name in SETS}
    by = {name: found for name, found in by.items() if found}
    lines = ["| set | cells | ours / forest | ours / boosted | ours / linear | service, target 0.90 |"]
    lines.append("|---|---|---|---|---|---|")
    services = {name: float(np.mean([each["service"]["ours"] for each in found])) for name, found in by.items()}
    for name, found in by.items():
        told = [f"{m:.3f} [{lo:.3f}, {hi:.3f}]" for m, lo, hi in (ratio(found, rival) for rival in RIVALS)]
        lines.append(f"| {name} | {len(found)} | {' | '.join(told)} | {services[name]:.3f} |")
    sets = {rival: [ratio(found, rival)[0] for found in by.values()] for rival in RIVALS}
    means = [f"{float(np.exp(np.nanmean(np.log(sets[rival])))):.3f}" for rival in RIVALS]
    lines.append(f"| mean of sets | {len(cells)} | {' | '.join(means)} | {np.mean(list(services.values())):.3f} |")
    return lines


if __name__ == "__main__":
    asked = sys.argv[1:] or list(SETS)
    run([name for name in asked if name not in ("table", "keep")])
    print(*table(remembered()), sep="\n")
    if "keep" in asked:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(remembered(), indent=1) + "\n")
