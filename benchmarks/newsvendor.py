"""RobustNewsvendor on real demand: YAZ (seven dishes) and, with BILEVELAX_DATA, twenty bakery series.

Protocol; the shifts were fixed before any shifted cost was computed:

- YAZ split: first 75 % of the open days to train, the rest to test; backlog 3 and 9, holding 1; cost of
  a dish divided by its mean demand on all days, mean over the seven dishes. One fit for all dishes.
- rolling origin: 4 folds of `TimeSeriesSplit`.
- context shift: weather columns of the test rows off by errors of Student's t with 2 degrees of freedom
  and scale 1 standard deviation (five draws), and by a constant +1 standard deviation.
- bakery: the 20 store-product series with the lowest numbers, 75/25, backlog 9, one seed, the same shifts.

``python benchmarks/newsvendor.py [yaz|rolling|bakery|time|speeds|million|all]``; SEEDS (5) is the number of seeds of
yaz.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import publish

from bilevelax.applications.newsvendor.loss import newsvendor_cost
from bilevelax.datasets import load_bakery, load_yaz
from bilevelax.sklearn import RobustNewsvendor, baselines, paired_interval, shifted

BEFORE: dict[str, Any] = dict(policy="mlp", conditional="forest", weight_decay=0.1, max_iter=800)  # nothing is chosen
SEEDS = range(int(os.environ.get("SEEDS", "5")))
YAZ_WEATHER = ("wind", "clouds", "rain", "sunshine", "temperature")
BAKERY_WEATHER = ("rain", "temperature")
Costs = dict[str, dict[str, np.ndarray]]  # {method: {shift: (seeds, test rows)}}


def competitors(b: float, seed: int) -> dict[str, Any]:
    """Without those that have no seed after the first."""
    robust = {
        "chosen (the default)": RobustNewsvendor(1, b, random_state=seed),
        "robust, penalty 0.03": RobustNewsvendor(1, b, penalty=0.03, random_state=seed, **BEFORE),
        "robust, penalty 0.3": RobustNewsvendor(1, b, penalty=0.3, random_state=seed, **BEFORE),
        "no robustness": RobustNewsvendor(1, b, penalty=np.inf, random_state=seed, **BEFORE),
    }
    rest = baselines(1, b, random_state=seed)
    return robust | {name: model for name, model in rest.items() if seed == 0 or hasattr(model, "random_state")}


def relative(model: Any, X: Any, y: Any, mean: np.ndarray, b: float) -> np.ndarray:
    """Cost of each test row, relative to mean demand, mean over outputs."""
    orders = np.reshape(model.predict(X), y.shape)  # of one product, scikit-learn gives a flat array
    return (newsvendor_cost(orders, y.to_numpy(), 1.0, b) / mean).mean(axis=1)


def shifts(X: Any, weather: tuple[str, ...]) -> dict[str, list[Any]]:
    columns = list(weather)
    heavy = [shifted(X, "heavy_tails", size=1.0, columns=columns, random_state=i) for i in range(5)]
    return {"as seen": [X], "heavy tails": heavy, "mean + 1 sd": [shifted(X, "mean", size=1.0, columns=columns)]}


def on_folds(data: Any, folds: list[tuple[Any, Any]], b: float, seeds: Any, weather: tuple[str, ...]) -> Costs:
    """Costs of all test rows."""
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for seed in seeds:
        per: dict[str, dict[str, list[np.ndarray]]] = {}
        for train, test in folds:
            for name, model in competitors(b, seed).items():
                model.fit(data.X.iloc[train], data.y.iloc[train])
                for shift, contexts in shifts(data.X.iloc[test], weather).items():
                    costs = [relative(model, X, data.y.iloc[test], data.y.mean().to_numpy(), b) for X in contexts]
                    per.setdefault(name, {}).setdefault(shift, []).append(np.mean(costs, axis=0))
        for name, by in per.items():
            for shift, parts in by.items():
                found.setdefault(name, {}).setdefault(shift, []).append(np.concatenate(parts))
    return {name: {shift: np.stack(runs) for shift, runs in by.items()} for name, by in found.items()}


def table(found: dict[str, dict[str, np.ndarray]], reference: str = "robust, penalty 0.3") -> list[dict[str, Any]]:
    rows = []
    for name, by in found.items():
        row: dict[str, Any] = {"method": name}
        for shift, runs in by.items():
            row[shift] = float(runs.mean())
            row[f"sd {shift}"] = float(runs.mean(axis=1).std(ddof=1)) if len(runs) > 1 else None
            low, high = paired_interval(runs.mean(axis=0), found[reference][shift].mean(axis=0))
            row[f"95 % {shift}"] = f"{low:+.3f}..{high:+.3f}"
        rows.append(row)
    return rows


def yaz() -> None:
    data = load_yaz()
    n = len(data.y)
    cut = round(0.75 * n)
    for b in (3.0, 9.0):
        found = on_folds(data, [(np.arange(cut), np.arange(cut, n))], b, SEEDS, YAZ_WEATHER)
        title = f"YAZ, last 25 %, backlog {b:g}: relative cost (intervals: difference to robust, penalty 0.3)"
        publish(f"newsvendor_yaz_{b:g}", title, table(found))


def rolling() -> None:
    from sklearn.model_selection import TimeSeriesSplit

    data = load_yaz()
    folds = list(TimeSeriesSplit(4).split(data.X))
    for b in (3.0, 9.0):
        found = on_folds(data, folds, b, range(1), YAZ_WEATHER)
        publish(f"newsvendor_rolling_{b:g}", f"YAZ, rolling origin, backlog {b:g}: relative cost", table(found))


def bakery() -> None:
    if "BILEVELAX_DATA" not in os.environ:
        print("bakery: set BILEVELAX_DATA")
        return
    whole = load_bakery().table[["store", "product"]].drop_duplicates().sort_values(["store", "product"])
    parts = []
    for store, product in whole.head(20).itertuples(index=False):
        data = load_bakery(store=store, product=product)
        cut, n = round(0.75 * len(data.y)), len(data.y)
        parts.append(on_folds(data, [(np.arange(cut), np.arange(cut, n))], 9.0, range(1), BAKERY_WEATHER))
    found = {
        name: {shift: np.concatenate([part[name][shift] for part in parts], axis=1) for shift in by}
        for name, by in parts[0].items()
    }
    publish("newsvendor_bakery", "Bakery, 20 series, backlog 9: relative cost", table(found))


def timings() -> None:
    data = load_yaz()
    X, y = data.X[:573], data.y["steak"][:573]
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        model = RobustNewsvendor(1, 9, penalty="cv", random_state=0).fit(X, y)
        seconds.append(time.perf_counter() - started)
    big = np.tile(X.to_numpy(), (1745, 1))[:1_000_000]
    plain = RobustNewsvendor(1, 9, penalty=0.3, random_state=0).fit(X.to_numpy(), y)
    plain.predict(big)
    started = time.perf_counter()
    plain.predict(big)
    predict = time.perf_counter() - started
    del big
    rng = np.random.default_rng(0)
    many = rng.normal(size=(100_000, 20))
    started = time.perf_counter()
    RobustNewsvendor(1, 9, penalty=0.3, random_state=0).fit(many, 10 + many[:, 0] + rng.normal(size=100_000))
    large = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rows = [
        {"what": "fit, 573 rows, path of 5, with compilation", "value": seconds[0], "unit": "s"},
        {"what": "the same fit again", "value": seconds[1], "unit": "s"},
        {"what": "predict, 10^6 rows", "value": predict, "unit": "s"},
        {"what": "fit, 100,000 rows of 20 columns", "value": large, "unit": "s"},
        {"what": "largest memory of all of this", "value": memory, "unit": "GB"},
    ]
    publish("newsvendor_time", "RobustNewsvendor: time and memory", rows, [f"penalty chosen: {model.penalty_:g}"])


SHOPS, PRODUCTS = 40, 5  # of the file of a million rows: 5,000 days


def write_shops(path: Path, rows: int) -> None:
    """Daily demand of shops and products in 2010 and after, written as CSV."""
    import pandas

    rng = np.random.default_rng(0)
    i = np.arange(rows)
    day, shop, product = i // (SHOPS * PRODUCTS), i % SHOPS, i // SHOPS % PRODUCTS
    warm = 15 + 10 * np.sin(2 * np.pi * day / 365) + 4 * rng.normal(size=rows)
    rain = rng.exponential(2.0, rows) * (rng.uniform(size=rows) < 0.3)
    offer = rng.uniform(size=rows) < 0.1
    price = 2 + product + 0.2 * rng.normal(size=rows)
    mean = 20 + shop + 0.5 * warm - rain + 15 * offer - 3 * price
    columns = {
        "date": np.datetime64("2010-01-01") + day,
        "shop": np.array([f"shop {k}" for k in range(SHOPS)])[shop],
        "product": np.array(list("abcde"))[product],
        "temperature": warm.round(2),
        "rain": rain.round(2),
        "promotion": offer.astype(int),
        "price": price.round(2),
        "demand": np.maximum(0, mean * rng.lognormal(0, 0.3, rows)).round(1),
    }
    pandas.DataFrame(columns).to_csv(path, index=False)


def told(command: str, *words: Any, **environ: str) -> tuple[dict[str, Any], dict[str, float]]:
    """(what the command told, what it used)."""
    started = time.perf_counter()
    whole = [sys.executable, "-m", "bilevelax", "newsvendor", command, *map(str, words), "--json"]
    process = subprocess.Popen(whole, stdout=subprocess.PIPE, env={**os.environ, **environ})
    assert process.stdout is not None
    said = json.loads(process.stdout.read())
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    seconds = {"CPU seconds": used.ru_utime + used.ru_stime, "seconds": time.perf_counter() - started}
    return said, {**seconds, "largest memory, GB": used.ru_maxrss / 2**20}


def speeds() -> None:
    """Commands of the guide with nothing kept from earlier ones: medians, and CPU seconds from least to most."""
    data = load_yaz()
    dishes, rows = list(data.y), []
    whole = data.table.drop(columns=["weekday", "month", "year", "is_closed"])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole[:573].join(data.y[dishes[-1]]).to_csv(place / "past.csv", index=False)
        whole[:573].join(data.y).to_csv(place / "dishes.csv", index=False)
        whole[573:603].to_csv(place / "tomorrow.csv", index=False)
        write_shops(place / "shops.csv", 100_000)
        costs, shops = ("--holding", 1, "--backlog", 9), place / "shops.csv"
        fit = lambda file, target, model: ("fit", file, "--target", target, *costs, "--out", place / model)
        commands = {
            "fit of 573 rows, one product": (5, fit(place / "past.csv", dishes[-1], "one")),
            "order of 30 rows": (5, ("order", place / "one", place / "tomorrow.csv", "--out", place / "orders.csv")),
            "fit of 573 rows, seven dishes": (3, fit(place / "dishes.csv", ",".join(dishes), "seven")),
            "fit of 100,000 rows of shops": (1, fit(shops, "demand", "shops")),
        }
        for name, (times, words) in commands.items():
            used = [told(*words, BILEVELAX_CACHE=str(place / f"{name} {i}"))[1] for i in range(times)]
            row = {key: float(np.median([each[key] for each in used])) for key in used[0]}
            seconds = sorted(each["CPU seconds"] for each in used)
            rows.append({"command": name, "runs": times, **row, "least": seconds[0], "most": seconds[-1]})
    publish("newsvendor_speeds", "bilevelax newsvendor: speeds", rows)


def million(rows: int = 1_000_000) -> None:
    """`bilevelax newsvendor fit` and `order` on a file of a million rows."""
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shops.csv"
        write_shops(file, rows)
        size = file.stat().st_size / 2**20
        commands = {
            "fit": [file, "--target", "demand", "--backlog", "9", "--penalty", "0.3", "--out", f"{folder}/model"],
            "order": [f"{folder}/model", file, "--out", f"{folder}/orders.csv"],
        }
        for name, words in commands.items():
            said, used = told(name, *words)
            assert said["rows"] == rows
            measured.append({"command": name, **used})
    publish("newsvendor_million", f"A CSV of {rows:,} rows ({size:.0f} MB), penalty 0.3", measured)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parts = {"yaz": yaz, "rolling": rolling, "bakery": bakery, "time": timings, "speeds": speeds, "million": million}
    wanted = sys.argv[1] if len(sys.argv) > 1 else "all"
    for name, part in parts.items():
        if wanted in (name, "all"):
            part()
