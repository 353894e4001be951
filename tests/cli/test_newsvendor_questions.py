"""The questions of a planner, each from a file to an answer."""

import csv
import json
import re

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bilevelax.cli import app
from bilevelax.cli._newsvendor_choices import with_columns_chosen
from bilevelax.cli._newsvendor_past import Asked, read_past

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
    for name in ("piled", "model"):  # orders of 48 seemed to cover every demand
        ordered = invoke("order", tmp_path / name, past, "--out", tmp_path / "o.csv")
        assert "of past days are at 48 and none is above" in ordered.output


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
    assert "1 row is of products not seen in training" in done.output and "1 / 8" in done.output
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
    assert "such as 7,28, or auto. Got 'week'" in refused("fit", past, "--target", "demand", "--lags", "week", *QUICK)
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


def test_stock_of_each_product_counts_for_it_and_room_is_split_after_it(tmp_path):
    table = days(80).rename(columns={"demand": "steak"})
    past = saved(table.assign(fish=table["steak"]), tmp_path / "past.csv")
    invoke("fit", past, "--target", "steak,fish", "--lead-time", 1, *QUICK, "--out", tmp_path / "model")
    stock = {"on_hand_steak": 60, "on_hand_fish": 0, "on_order_steak": 0, "on_order_fish": 10}
    new = saved(table.head(3).assign(**stock), tmp_path / "new.csv")
    place = lambda *words: invoke("order", tmp_path / "model", new, *words, "--out", tmp_path / "o.csv")
    place("--pack", 0)
    free = pd.read_csv(tmp_path / "o.csv")
    invoke("order", tmp_path / "model", saved(pd.read_csv(new).assign(**dict.fromkeys(stock, 0)), tmp_path / "0.csv"),
           "--pack", 0, "--out", tmp_path / "n.csv")  # fmt: skip
    level = pd.read_csv(tmp_path / "n.csv")
    np.testing.assert_allclose(free["order_steak"], (level["order_steak"] - 60).clip(lower=0))
    np.testing.assert_allclose(free["order_fish"], (level["order_fish"] - 10).clip(lower=0))
    place("--capacity", 60, "--pack", 0)
    split = pd.read_csv(tmp_path / "o.csv")
    np.testing.assert_allclose(split["order_steak"] + split["order_fish"], 60)
    filled = split["order_fish"] + 10 - split["order_steak"] - 60  # equal laws: both are filled to about one level
    assert (filled.abs() < 25).all() and (split["order_fish"] > split["order_steak"] + 25).all()
    told = refused("order", tmp_path / "model", past)
    assert "has no column 'on_hand_steak'" in told
    assert "what was in stock on those days is not known" in refused(
        "evaluate", tmp_path / "model", past, "--capacity", 60
    )


def test_costs_of_each_product_reach_the_rule(tmp_path):
    table = days(80).rename(columns={"demand": "steak"})
    past = saved(table.assign(fish=table["steak"]), tmp_path / "past.csv")
    how = ("--target", "steak,fish", "--policy", "linear", "--penalty", "inf", "--max-iter", 300)
    invoke("fit", past, *how, "--backlog", "steak=19,fish=1", "--out", tmp_path / "model")
    invoke("order", tmp_path / "model", past, "--out", tmp_path / "o.csv")
    placed = pd.read_csv(tmp_path / "o.csv")
    assert (placed["order_steak"] > placed["order_fish"]).mean() > 0.9
    assert "it has none for 'fish'" in refused("fit", past, *how, "--backlog", "steak=19")


@pytest.fixture(scope="module")
def two_dishes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dishes")
    table = days(130).rename(columns={"demand": "steak"})
    table["fish"] = 3 * days(130, 1)["demand"]
    saved(table[:100], folder / "past.csv")
    saved(table[100:], folder / "later.csv")
    invoke("fit", folder / "past.csv", "--target", "steak,fish", "--backlog", 9, *QUICK, "--out", folder / "model")
    return folder


def test_evaluate_tells_service_ranges_products_and_shifts(two_dishes):
    words = ("evaluate", two_dishes / "model", two_dishes / "later.csv", "--out", two_dishes / "e.png", "--shift", 1)
    done = invoke(*words)
    assert "the target is 90%" in done.output and "The 90 % range of demand held on" in done.output
    assert "Products, dearest first" in done.output and "with outliers" in done.output
    told = json.loads(invoke(*words, "--json").stdout)
    assert told["target"] == pytest.approx(0.9) and 0.5 <= told["coverage"] <= 1
    assert [row["product"] for row in told["products"]] == ["fish", "steak"]  # three times the demand
    assert {row["newsvendor"] for row in told["shifts"]} == {row["newsvendor"] for row in told["table"]}
    assert all(row["as seen"] > 0 and row["too high"] > 0 for row in told["shifts"])
    page = two_dishes / "e.html"
    invoke("evaluate", two_dishes / "model", two_dishes / "later.csv", "--out", page)
    held = re.search(r"Likely range held</dt><dd>([\d.]+)", page.read_text())
    assert float(held[1]) == pytest.approx(100 * told["coverage"], abs=0.06)  # one law on the page and in the terminal


def test_a_capacity_is_split(two_dishes, tmp_path):
    later = pd.read_csv(two_dishes / "later.csv").assign(space=[100, 900] * 15)
    file = saved(later, tmp_path / "later.csv")
    free = ("order", two_dishes / "model", file, "--out", tmp_path / "free.csv")
    invoke(*free)
    invoke("order", two_dishes / "model", file, "--capacity", "space", "--out", tmp_path / "o.csv")
    names = ["order_steak", "order_fish"]
    wanted, placed = (pd.read_csv(tmp_path / name)[names] for name in ("free.csv", "o.csv"))
    np.testing.assert_allclose(placed.sum(axis=1)[::2], 100)
    np.testing.assert_allclose(placed[1::2], wanted[1::2])  # it does not bind
    packed = invoke("order", two_dishes / "model", file, "--capacity", 100, "--pack", 7, "--out", tmp_path / "p.csv")
    assert packed.exit_code == 0 and (pd.read_csv(tmp_path / "p.csv")[names].sum(axis=1) <= 100).all()
    judged = json.loads(
        invoke("evaluate", two_dishes / "model", file, "--capacity", 100, "--json", "--out", tmp_path / "e.png").stdout
    )
    assert all(row["service_level"] < 0.75 for row in judged["table"])  # everybody has 100 units only
    assert "must be a number or a column" in refused("order", two_dishes / "model", file, "--capacity", "room")


def test_a_minimum_fits_into_the_capacity_or_is_refused(two_dishes, tmp_path):
    words = ("order", two_dishes / "model", two_dishes / "later.csv", "--capacity", 30, "--out", tmp_path / "o.csv")
    invoke(*words, "--minimum", 11, "--pack", 2)
    placed = pd.read_csv(tmp_path / "o.csv")[["order_steak", "order_fish"]]
    assert (placed >= 12).all(axis=None) and (placed.sum(axis=1) <= 30).all()
    told = refused(*words, "--minimum", 16)
    assert "asks for 32 units on one day (2 orders of 16)" in told and "has room for 30" in told


def test_a_budget_or_shelf_is_shared_by_units_of_different_sizes(two_dishes, tmp_path):
    model, later = two_dishes / "model", two_dishes / "later.csv"
    words = ("--capacity", 300, "--size", "steak=4,fish=1")
    used = lambda placed: 4 * placed["order_steak"] + placed["order_fish"]
    order = lambda *more: (
        invoke("order", model, later, *more, "--out", tmp_path / "o.csv"),
        pd.read_csv(tmp_path / "o.csv"),
    )[1]
    np.testing.assert_allclose(used(order(*words, "--pack", 0)), 300)
    alike = order("--capacity", 120)
    whole = order(*words)
    assert (used(whole) <= 300).all() and (used(whole) > 296).all()  # no room for another unit of steak is left
    assert (whole["order_fish"] > alike["order_fish"]).all()  # it takes little room now
    judged = json.loads(invoke("evaluate", model, later, *words, "--json", "--out", tmp_path / "e.png").stdout)
    assert all(row["service_level"] < 0.75 for row in judged["table"])
    told = refused("order", model, later, *words, "--minimum", 70, "--out", tmp_path / "o.csv")
    assert "asks for 350 units of room on one day (2 orders of 70)" in told
    assert "Give `--capacity`, too" in refused("order", model, later, "--size", "steak=4,fish=1")
    assert "it has none for 'fish'" in refused("order", model, later, "--capacity", 9, "--size", "steak=4")
    assert "one for each product, such as steak=2,fish=1. Got 'rain'" in refused(
        "order", model, later, "--capacity", 9, "--size", "rain"
    )


def test_a_capacity_is_shared_by_the_rows_of_a_day(tmp_path):
    parts = [days(40, seed).assign(item=item) for seed, item in enumerate(["bun", "roll"])]
    past = saved(pd.concat(parts), tmp_path / "past.csv")
    invoke("fit", past, "--target", "demand", "--id", "item", *QUICK, "--out", tmp_path / "model")
    invoke("order", tmp_path / "model", past, "--capacity", 50, "--out", tmp_path / "o.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "o.csv").groupby("date")["order"].sum(), 50)
    prices = {"bun": 2.5, "roll": 1.0}
    priced = saved(pd.read_csv(past).assign(price=lambda table: table["item"].map(prices)), tmp_path / "priced.csv")
    for size in ("price", "bun=2.5,others=1"):
        words = ("order", tmp_path / "model", priced, "--capacity", 90, "--size", size, "--pack", 0)
        invoke(*words, "--out", tmp_path / "o.csv")
        placed = pd.read_csv(tmp_path / "o.csv")
        np.testing.assert_allclose((placed["order"] * placed["price"]).groupby(placed["date"]).sum(), 90)
    wrong = saved(pd.read_csv(past).assign(price=0), tmp_path / "wrong.csv")
    told = refused("order", tmp_path / "model", wrong, "--capacity", 90, "--size", "price")
    assert "`--size` must be numbers > 0. Got 0 in row 1 of" in told


def test_an_order_is_explained_by_its_columns(two_dishes, tmp_path):
    model, later = two_dishes / "model", two_dishes / "later.csv"
    done = invoke("explain", model, later, "--row", 2, "--out", tmp_path / "why.csv")
    assert "typical order" in done.output and "steak on 2024-04-11" in done.output and "Thursday" in done.output
    why = pd.read_csv(tmp_path / "why.csv")
    parts = why[["by weekday_fish", "by time of year_fish", "by rain_fish"]].sum(axis=1)
    np.testing.assert_allclose(why["typical_fish"] + parts, why["order_fish"], atol=1e-4)
    invoke("order", model, later, "--pack", 0, "--out", tmp_path / "o.csv")
    np.testing.assert_allclose(why["order_fish"], pd.read_csv(tmp_path / "o.csv")["order_fish"], atol=1e-4)
    assert "`--row` must be a row of" in refused("explain", model, later, "--row", 99)


def test_newer_rows_are_taken_in_and_a_drift_is_told(two_dishes, tmp_path):
    model, later = two_dishes / "model", pd.read_csv(two_dishes / "later.csv")
    news = saved(later.assign(fish=later["fish"] + 60), tmp_path / "news.csv")  # sales went up by a half
    done = invoke("update", model, news, "--out", tmp_path / "model")
    assert "30 new rows, 0 known already; learnt from 130" in done.output
    assert "fish: demand of the last 30 rows is above that of earlier days like them" in done.output
    assert "steak: demand" not in done.output
    record = json.loads((tmp_path / "model" / "model.json").read_text())
    assert record["schema"]["calendar"]["last"] == "2024-05-09" and record["settings"]["backlog_cost"] == 9.0
    assert "has no row that" in refused("update", tmp_path / "model", news, "--out", tmp_path / "again")
    told = invoke("evaluate", model, news, "--out", tmp_path / "e.png")
    assert "Refit with newer rows: bilevelax newsvendor update" in told.output


def test_what_is_not_supported_is_answered(monkeypatch, capsys):
    from bilevelax import cli

    monkeypatch.setattr("sys.argv", ["bilevelax", "newsvendor", "order", "m", "f.csv", "--budget", "100"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "A budget is --capacity, with what a unit costs as --size" in said
    assert "No such option" not in said
    monkeypatch.setattr("sys.argv", ["bilevelax", "newsvendor", "evaluate", "m", "f.csv", "--pack", "6"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--pack belongs to `bilevelax newsvendor order`, not to evaluate. See" in capsys.readouterr().err


def test_a_trend_is_used_where_it_pays_and_recent_rows_that_differ_are_told(tmp_path):
    flat = days(200)
    rising = flat.assign(demand=flat["demand"] + np.where(np.arange(200) >= 165, 30, 0))
    told = {}
    for name, table in {"flat": flat, "rising": rising.assign(demand=flat["demand"] + np.arange(200) // 2)}.items():
        past = saved(table, tmp_path / f"{name}.csv")
        told[name] = invoke("fit", past, "--target", "demand", "--dates", "auto", *QUICK, "--out", tmp_path / name)
    assert "trend: not used" in told["flat"].output and "trend: used" in told["rising"].output
    assert "demand of the last" not in told["flat"].output
    past = saved(rising.drop(columns="date"), tmp_path / "jump.csv")
    jump = invoke("fit", past, "--target", "demand", *QUICK, "--out", tmp_path / "jump")
    assert "demand of the last 28 rows is above that of earlier days like them" in jump.output


def swinging(n=240, seed=0):
    """Demand whose level swings within 45 days: last week says more than the season."""
    rng = np.random.default_rng(seed)
    level = 100 + 30 * np.sin(2 * np.pi * np.arange(n) / 45)
    return days(n, seed).assign(demand=np.round(level + rng.normal(0, 2, n)).astype(int))


def test_past_demand_is_used_where_it_pays(tmp_path):
    read = lambda table: read_past(saved(table, tmp_path / "past.csv"), asked)
    asked, costs = Asked("demand", lags="auto"), {"holding_cost": 1.0, "backlog_cost": 9.0}
    used = with_columns_chosen(read(swinging()), costs, asked)
    assert used.schema.lags["days"] == [7, 28] and "demand 7 days before" in used.X
    assert list(used.X) == used.schema.features() and "past demand: used" in used.notes[-1]
    plain = with_columns_chosen(read(days(240)), costs, asked)
    assert plain.schema.lags is None and list(plain.X) == plain.schema.features()
    assert "past demand: not used" in plain.notes[-1]
    few = with_columns_chosen(read(swinging(90)), costs, asked)  # not four times 28 days
    assert few.schema.lags is None


def test_orders_are_whole_where_demand_is(two_dishes, tmp_path):
    file = two_dishes / "later.csv"
    invoke("order", two_dishes / "model", file, "--out", tmp_path / "whole.csv")
    invoke("order", two_dishes / "model", file, "--pack", 0, "--out", tmp_path / "any.csv")
    whole, exact = (pd.read_csv(tmp_path / name)["order_steak"] for name in ("whole.csv", "any.csv"))
    assert (whole % 1 == 0).all() and (exact % 1 != 0).any() and (whole - exact).abs().max() <= 0.5
    halves = read_past(saved(days().assign(demand=lambda t: t.demand + 0.5), tmp_path / "h.csv"), Asked("demand"))
    assert not halves.schema.whole


@pytest.fixture(scope="module")
def dear_and_cheap(tmp_path_factory):
    """Two products of one law, of which a bun is dear to miss and a pie as dear to keep; a model, and later days."""
    folder = tmp_path_factory.mktemp("costs")
    long = lambda n, seed: pd.concat(
        [days(n, 2 * seed + k).assign(item=item) for k, item in enumerate(("bun", "pie"))]
    ).sort_values(["date", "item"])
    past = saved(long(150, 0), folder / "past.csv")
    words = ("--target", "demand", "--id", "item", "--backlog", "bun=19,others=1", "--out", folder / "model")
    told = invoke("fit", past, *words, *QUICK).output
    saved(long(60, 9), folder / "later.csv")
    return folder, told


def test_products_of_a_long_table_have_costs_of_their_own(dear_and_cheap, tmp_path):
    folder, told = dear_and_cheap
    assert "item: one model for 2 products, cost of a unit missing by product" in told
    file, model = folder / "later.csv", folder / "model"
    later = pd.read_csv(file)
    invoke("order", model, file, "--pack", 0, "--out", tmp_path / "o.csv")
    placed = pd.read_csv(tmp_path / "o.csv")
    bun = (placed["item"] == "bun").to_numpy()
    assert (placed["chance"][bun].mean() > 0.9) and 0.3 < placed["chance"][~bun].mean() < 0.7
    found = json.loads(
        invoke("evaluate", model, file, "--json", "--out", tmp_path / "e.html", "--out", tmp_path / "e.png").stdout
    )
    rows = {row["product"]: row for row in found["products"]}
    assert [rows[name]["target"] for name in ("bun", "pie")] == pytest.approx([0.95, 0.5])
    assert found["target"] == pytest.approx(0.725)
    over = placed["order"].to_numpy() - later["demand"].to_numpy()
    for name, own, dear in (("bun", bun, 19), ("pie", ~bun, 1)):
        paid = np.where(over[own] > 0, over[own], -dear * over[own]).mean()
        assert rows[name]["cost"] == pytest.approx(paid, rel=1e-6) and rows[name]["days"] == 60
        alike = later["demand"][own]  # the same order every day is one for each product, at its own level
        past = pd.read_csv(folder / "past.csv").query("item == @name")["demand"]
        same = np.quantile(past, rows[name]["target"], method="inverted_cdf")
        rows[name]["same"] = np.where(same > alike, same - alike, dear * (alike - same)).mean()
    plain = next(row for row in found["table"] if row["newsvendor"] == "quantile")
    assert plain["mean_cost"] == pytest.approx((rows["bun"]["same"] + rows["pie"]["same"]) / 2)
    page = (tmp_path / "e.html").read_text(encoding="utf-8")
    assert "1 to 19 (by product) for a unit missing" in page and "By product, dearest first" in page
    assert re.search(
        r"with the same order of a product every day, with [\d,]+ \w+ units left over and [\d,]+ \w+ missing\.", page
    )


def test_room_and_newer_rows_know_the_costs_of_products(dear_and_cheap, tmp_path):
    folder, _ = dear_and_cheap
    file, model = folder / "later.csv", folder / "model"
    invoke("order", model, file, "--capacity", 85, "--minimum", 5, "--out", tmp_path / "o.csv")
    placed = pd.read_csv(tmp_path / "o.csv")
    assert (placed.groupby("date")["order"].sum() <= 85).all()
    by = placed.groupby("item")["order"].mean()
    assert by["bun"] > by["pie"] >= 5  # room goes to what is dear to miss
    invoke("update", model, file, "--out", tmp_path / "newer")
    invoke("order", tmp_path / "newer", file, "--out", tmp_path / "n.csv")
    chance = pd.read_csv(tmp_path / "n.csv").groupby("item")["chance"].mean()
    assert chance["bun"] > 0.9 and chance["pie"] < 0.7
    new = saved(pd.read_csv(file).assign(item="roll").head(3), tmp_path / "new.csv")
    invoke("order", model, new, "--out", tmp_path / "r.csv")  # others=1
    assert (pd.read_csv(tmp_path / "r.csv")["chance"] < 0.8).all()


def test_costs_of_products_that_are_not_there_are_refused(tmp_path):
    past = saved(days().assign(item="bun"), tmp_path / "past.csv")
    words = ("fit", past, "--target", "demand", "--id", "item", "--out", tmp_path / "m", "--backlog")
    assert "names 'pie', which is none of the products bun" in refused(*words, "bun=9,pie=3")
