"""The questions of a planner, each from a file to an answer."""

import csv
import json

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bilevelax.cli import app

runner = CliRunner()
QUICK = ("--penalty", "inf", "--policy", "linear", "--max-iter", 20)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def invoke(*words, code=0):
    done = runner.invoke(app, ["newsvendor", *map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


def refused(*words):
    return str(invoke(*words, code=1).exception)


def days(n=70, seed=0):
    """A row a day: demand 40 + 10 on Saturdays + noise."""
    rng = np.random.default_rng(seed)
    when = pd.date_range("2024-01-01", periods=n)
    demand = 40 + 10 * (when.day_of_week == 5) + rng.integers(-5, 6, n)
    return pd.DataFrame({"date": when.strftime("%Y-%m-%d"), "rain": rng.normal(size=n).round(2), "demand": demand})


def saved(table, path):
    table.to_csv(path, index=False)
    return path


def orders(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_sold_out_days_are_demands_of_their_own(tmp_path):
    table = days(120).assign(stock=48)
    table["demand"] = np.minimum(table["demand"], 48)
    past = saved(table, tmp_path / "past.csv")
    piled = invoke("fit", past, "--target", "demand", *QUICK, "--out", tmp_path / "piled")
    assert "and never more: did it sell out?" in piled.output
    done = invoke("fit", past, "--target", "demand", "--stockout", "stock", *QUICK, "--out", tmp_path / "model")
    assert "rows sold out; the largest sale that was not cut off covers" in done.output
    assert "did it sell out" not in done.output and "stock: number" not in done.output
    with np.load(tmp_path / "model" / "arrays.npz") as arrays:
        assert (arrays["y"] >= table[["demand"]].to_numpy()).all()
    assert "is no column of" in refused("fit", past, "--target", "demand", "--stockout", "stok", *QUICK)


def test_many_stores_and_items_are_one_model(tmp_path):
    parts = [
        days(40, seed).assign(store=store, item=item) for seed, (store, item) in enumerate([(1, 7), (1, 8), (2, 7)])
    ]
    for factor, part in zip((1, 3, 9), parts, strict=True):
        part["demand"] *= factor
    past = saved(pd.concat(parts), tmp_path / "past.csv")
    done = invoke("fit", past, "--target", "demand", "--id", "store,item", *QUICK, "--out", tmp_path / "model")
    assert "store, item: one model for 3 products" in done.output and "store: category with 2 values" in done.output
    new = pd.DataFrame({"date": "2024-03-01", "rain": 0.0, "store": [1, 1, 2, 5], "item": [7, 8, 7, 7]})
    done = invoke("order", tmp_path / "model", saved(new, tmp_path / "new.csv"), "--out", tmp_path / "o.csv")
    assert "1 rows are of products not seen in training" in done.output and "1 / 8" in done.output
    middle = [float(row["demand_50"]) for row in orders(tmp_path / "o.csv")]
    assert middle[0] < middle[1] < middle[2]
    assert "one column of demand" in refused("fit", past, "--target", "demand,rain", "--id", "store", *QUICK)
    assert "`--id` names 'shop'" in refused("fit", past, "--target", "demand", "--id", "shop", *QUICK)


def test_lags_and_holidays_are_known_when_ordering(tmp_path):
    past = saved(days(80), tmp_path / "past.csv")
    how = ("--target", "demand", "--lags", "7,14", "--holidays", "DE", *QUICK)
    done = invoke("fit", past, *how, "--out", tmp_path / "model")
    assert "public holidays of DE" in done.output and "demand 7 days before, demand mean of 7 days" in done.output
    new = days(90).drop(columns="demand")[80:]
    done = invoke("order", tmp_path / "model", saved(new, tmp_path / "new.csv"), "--out", tmp_path / "o.csv")
    assert "3 rows have no known demand on the days before them" in done.output  # from the eighth day on
    assert len(orders(tmp_path / "o.csv")) == 10
    undated = saved(days().drop(columns="date"), tmp_path / "undated.csv")
    assert "`--lags` needs a column of dates" in refused("fit", undated, *how)
    assert "such as 7,28. Got 'week'" in refused("fit", past, "--target", "demand", "--lags", "week", *QUICK)
    assert "a country's code such as DE" in refused("fit", past, "--target", "demand", "--holidays", "XX", *QUICK)


def test_a_lead_time_fills_the_stock_up(tmp_path):
    past = saved(days(80), tmp_path / "past.csv")
    done = invoke("fit", past, "--target", "demand", "--lead-time", 2, *QUICK, "--out", tmp_path / "model")
    assert (
        "demand is that of 3 days" in done.output
        and json.loads((tmp_path / "model" / "model.json").read_text())["schema"]["lead_time"] == 2
    )
    with np.load(tmp_path / "model" / "arrays.npz") as arrays:
        demand = days(80)["demand"].to_numpy()
        np.testing.assert_array_equal(arrays["y"][:, 0], demand[:-2] + demand[1:-1] + demand[2:])
    new = pd.DataFrame({"date": "2024-03-25", "rain": 0.0, "on_hand": [0, 50, 500], "on_order": [0, 20, 0]})
    invoke("order", tmp_path / "model", saved(new, tmp_path / "new.csv"), "--out", tmp_path / "o.csv")
    first, second, third = (float(row["order"]) for row in orders(tmp_path / "o.csv"))
    assert first - second == pytest.approx(70) and third == 0 and 100 < first < 200
    bare = saved(new.drop(columns="on_order"), tmp_path / "bare.csv")
    assert "has no column 'on_order'" in refused("order", tmp_path / "model", bare)
    plain = days(80).rename(columns={"demand": "sold"})
    assert "together are not supported" in refused(
        "fit", saved(plain.assign(out=0), tmp_path / "p.csv"), "--target", "sold", "--stockout", "out", "--lead-time", 1
    )


def test_costs_of_each_product_reach_the_rule(tmp_path):
    table = days(80).rename(columns={"demand": "steak"})
    past = saved(table.assign(fish=table["steak"]), tmp_path / "past.csv")
    how = ("--target", "steak,fish", "--policy", "linear", "--penalty", "inf", "--max-iter", 300)
    invoke("fit", past, *how, "--backlog", "steak=19,fish=1", "--out", tmp_path / "model")
    invoke("order", tmp_path / "model", past, "--out", tmp_path / "o.csv")
    placed = pd.read_csv(tmp_path / "o.csv")
    assert (placed["order_steak"] > placed["order_fish"]).mean() > 0.9
    assert "has no number for 'fish'" in refused("fit", past, *how, "--backlog", "steak=19")
