"""`bilevelax newsvendor` as an analyst would type it, and every way in which a CSV can be wrong."""

import csv
import json
import re

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from bilevelax.cli import app
from bilevelax.cli._newsvendor_capacity import Room
from bilevelax.cli._newsvendor_order import in_packs
from bilevelax.cli._newsvendor_prices import Prices, numbers_option

runner = CliRunner()


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def invoke(*words):
    return runner.invoke(app, ["newsvendor", *map(str, words)], env={"COLUMNS": "200"})


def write(path, rows, delimiter=",", encoding="utf-8"):
    with open(path, "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


SURE = ["demand_5", "demand_50", "demand_95", "chance"]
HEADER = ["date", "temperature", "promotion", "shop", "demand"]


def days(n=60):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        warm = round(10 + 5 * rng.normal(), 2)
        rows.append([f"2024-{1 + i // 28:02d}-{1 + i % 28:02d}", warm, i % 2, "ab"[i % 2], round(20 + warm, 2)])
    return rows


QUICK = ("--target", "demand", "--penalty", "inf", "--policy", "linear", "--max-iter", 20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    past = write(folder / "past.csv", [HEADER, *days()])
    done = invoke("fit", past, *QUICK, "--backlog", 9, "--out", folder / "model")
    assert done.exit_code == 0, done.output + repr(done.exception)
    return folder, done.output


def test_fit_reports_what_it_used(trained):
    folder, output = trained
    assert "60 rows" in output and "date: weekday, month, smooth day of the year" in output
    assert "shop: category with 2 values" in output and "May move: temperature" in output
    record = json.loads((folder / "model" / "model.json").read_text())
    assert record["schema"]["targets"] == ["demand"] and record["settings"]["backlog_cost"] == 9.0
    with np.load(folder / "model" / "arrays.npz", allow_pickle=False) as arrays:
        assert arrays["y"].shape == (60, 1)


def test_order_keeps_the_columns(trained):
    folder, _ = trained
    rows = [["note", *HEADER[:-1]], ["x", "2024-07-01", 12, 1, "a"], ["y", "2024-07-02", "", 0, "new"]]
    tomorrow = write(folder / "tomorrow.csv", rows)
    done = invoke("order", folder / "model", tomorrow, "--out", folder / "orders.csv")
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert "temperature: 1 missing value became" in done.output
    assert "shop: 1 row with values not seen in training (new)" in done.output
    written = read(folder / "orders.csv")
    assert list(written[0]) == ["note", *HEADER[:-1], "order", *SURE] and float(written[0]["order"]) > 0
    low, middle, high, chance = (float(written[0][name]) for name in SURE)
    assert 20 < low < middle < high < 50 and 0 <= chance <= 1
    assert "covers" in done.output and max(map(len, done.output.splitlines()[-6:-1])) <= 80


def test_evaluate_compares(trained):
    folder, _ = trained
    outs = ("--out", folder / "plot.png", "--out", folder / "page.html")
    done = invoke("evaluate", folder / "model", folder / "past.csv", *outs)
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert all(name in done.output for name in ("robust", "quantile", "forest", "boosted", "service"))
    assert done.output.startswith(
        "Data health: 1 thing to look at\n  ! 60 of 60 rows are rows that the model was trained"
    )
    assert done.output.endswith(f"Plot: {folder / 'plot.png'}\nReport: {folder / 'page.html'}\n")
    assert (folder / "plot.png").stat().st_size > 5000
    page = (folder / "page.html").read_text()
    assert "boosted trees" in page and "the same order every day" in page and '"dated":true' in page
    assert set(re.findall(r"\w+://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}  # a name: nothing is fetched
    wrong = invoke("evaluate", folder / "model", folder / "past.csv", "--out", folder / "plot.txt")
    assert "`--out` must end in .html, .png, .svg or .pdf" in str(wrong.exception)


def test_results_for_programs(trained, tmp_path):
    """One JSON document on standard output, nothing on standard error."""
    folder, _ = trained
    done = invoke(
        "fit", folder / "past.csv", *QUICK, "--penalty", "cv", "--folds", 2, "--json", "--out", tmp_path / "model"
    )
    fitted = json.loads(done.stdout)
    assert done.stderr == "" and fitted["rows"] == 60 and fitted["may_move"] == ["temperature"]
    assert [row["penalty"] for row in fitted["path"]] == ["inf", 1.0, 0.3, 0.1, 0.03]
    assert fitted["penalty"] == min(fitted["path"], key=lambda row: row["validation_cost"])["penalty"]
    done = invoke("order", folder / "model", folder / "past.csv", "--json", "--out", tmp_path / "new" / "orders.csv")
    assert json.loads(done.stdout)["columns"] == ["order", *SURE] and len(read(tmp_path / "new" / "orders.csv")) == 60
    done = invoke("evaluate", folder / "model", folder / "past.csv", "--json", "--out", tmp_path / "page.html")
    judged = json.loads(done.stdout)
    assert done.stderr == "" and judged["files"] == [str(tmp_path / "page.html")]
    costs = {row["newsvendor"]: row["mean_cost"] for row in judged["table"]}
    assert len(costs) == 6 and costs["robust"] > 0


HOSTILE = ["<script>alert(1)</script>", "[bold]b[/bold]", "\x1b[31mred", "$x$", "a, b", "{{ 7 * 7 }}"]


def test_column_names_stay_names(tmp_path):
    """Not markup, not a page's code, not a control code, not a list: as a feature, as a target, in every output."""
    rng = np.random.default_rng(0)
    past = write(tmp_path / "past.csv", [[*HOSTILE, "other"], *rng.uniform(1, 9, (40, 7)).round(2).tolist()])
    target = ("--target", '"a, b","{{ 7 * 7 }}"', *QUICK[2:])
    done = invoke("fit", past, *target, "--perturb", "<script>alert(1)</script>", "--out", tmp_path / "model")
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert "May move: <script>alert(1)</script>\n" in done.output and "[bold]b[/bold]: number" in done.output
    assert "\\x1b[31mred: number" in done.output and "\x1b" not in done.output
    done = invoke("evaluate", tmp_path / "model", past, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output + repr(done.exception)
    page = (tmp_path / "page.html").read_text()
    assert page.count("<script") == 2 and "<script>alert" not in page  # its data and its own script
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "{{ 7 * 7 }}" in page
    assert invoke("order", tmp_path / "model", past, "--out", tmp_path / "orders.csv").exit_code == 0
    names = list(read(tmp_path / "orders.csv")[0])
    assert names[:8] == [*HOSTILE, "other", "order_a, b"] and "order_{{ 7 * 7 }}" in names
    done = invoke("fit", past, "--target", "none", "--out", tmp_path / "model")
    assert "\x1b" not in str(done.exception) and "it has <script>" in str(done.exception)


def test_an_order_column_is_replaced_and_said(trained, tmp_path):
    folder, _ = trained
    again = write(tmp_path / "again.csv", [[*HEADER[:-1], "order"], ["2024-07-01", 12, 1, "a", -5]])
    done = invoke("order", folder / "model", again, "--out", tmp_path / "orders.csv")
    assert f"column order of {again} was replaced" in done.output
    assert float(read(tmp_path / "orders.csv")[0]["order"]) > 0


def test_the_example_ends_with_table_plot_and_report(monkeypatch, tmp_path):
    from bilevelax import datasets

    small = datasets.load_yaz()
    small = small._replace(y=small.y[["lamb", "fish"]][:80], table=small.table[:80])
    monkeypatch.setattr(datasets, "load_yaz", lambda: small)
    done = invoke("example", "--out", tmp_path / "demo", "--max-iter", 20)
    assert done.exit_code == 0, done.output + repr(done.exception)
    lines = done.output.splitlines()
    assert any("boosted quantile" in line for line in lines[-16:])
    assert lines[-2:] == [f"Plot: {tmp_path}/demo/newsvendor.png", f"Report: {tmp_path}/demo/newsvendor.html"]
    done = invoke("example", "--out", tmp_path / "demo", "--max-iter", 20, "--json")
    assert list(json.loads(done.stdout)) == ["fit", "order", "evaluate"] and done.stderr == ""


def test_semicolons_bom_and_decimal_commas(trained, tmp_path):
    """The same numbers written the European way give the same encoded table."""
    from bilevelax.tables.csv_files import read_table
    from bilevelax.tables.schema import learn_schema

    folder, _ = trained
    rows = [[str(cell).replace(".", ",") for cell in row] for row in days()]
    path = write(tmp_path / "europe.csv", [HEADER, *rows], ";", "utf-8-sig")
    made, expected = read_table(path), read_table(folder / "past.csv")
    assert list(made.columns) == HEADER
    np.testing.assert_array_equal(made["temperature"], expected["temperature"])
    schema = learn_schema(made, ["demand"], None, path)
    np.testing.assert_array_equal(schema.encode(made, path)[0], schema.encode(expected, path)[0])


WRONG = {
    "no target": (HEADER[:-1], [row[:-1] for row in days()], (), "has no column 'demand'; it has date, temperature"),
    "words for demand": (HEADER, [*days()[:5], ["2024-09-01", 3, 0, "a", "many"]], (), "Got 'many' in row 6"),
    "one row": (HEADER, days()[:1], (), "at least 2 are needed"),
    "no rows": (HEADER, [], (), "at least 2 are needed"),
    "negative cost": (HEADER, days(), ("--holding", -1), "`--holding` must be a positive number. Got -1"),
    "penalty": (HEADER, days(), ("--penalty", "much"), "`--penalty` must be a number, inf, cv or auto. Got 'much'"),
    "two alike": (
        [*HEADER[:-1], "shop=a", "demand"],
        [[*row[:-1], i, row[-1]] for i, row in enumerate(days())],
        (),
        "would both become 'shop=a'. Rename one of them",
    ),
    "penalty below 0": (HEADER, days(), ("--penalty", -1), "`--penalty` must be a positive number. Got -1"),
    "policy": (HEADER, days(), ("--policy", "tree"), "`--policy` must be mlp, soft_forest, linear or auto. Got 'tree'"),
    "steps": (HEADER, days(), ("--max-iter", 0), "`--max-iter` must be 1 or more. Got 0"),
    "dates": (HEADER, days(), ("--dates", "years"), "`--dates` must be plain, season, trend or auto. Got 'years'"),
    "folds": (HEADER, days(), ("--folds", 0), "`--folds` must be 1 or more. Got 0"),
    "many folds": (
        HEADER,
        days(),
        ("--folds", 50),
        "`--folds` must make folds of at least 4 rows to train on and 2 to judge by. Got one of 10 and 1 from 60 rows",
    ),
    "perturb": (HEADER, days(), ("--perturb", "shop"), "`--perturb` names 'shop', which is no column of numbers"),
    "no date column": (HEADER, days(), ("--date", "when"), "has no column 'when', which holds the dates"),
    "no dates": (
        HEADER,
        days(),
        ("--date", "shop"),
        "all written alike. Got 'a' in row 1",
    ),
    "only demand": (["demand"], [[1], [2]], (), "has no column that could be used beside demand"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name, tmp_path):
    header, rows, options, sentence = WRONG[name]
    done = invoke("fit", write(tmp_path / "wrong.csv", [header, *rows]), *QUICK, *options, "--out", tmp_path / "model")
    assert done.exit_code == 1 and isinstance(done.exception, ValueError)
    assert sentence in str(done.exception)
    assert "RobustNewsvendor" not in str(done.exception)  # an internal name


def test_wrong_files_without_a_table(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    assert "is empty: the first line must name the columns" in str(
        invoke("fit", tmp_path / "empty.csv", *QUICK).exception
    )
    assert "There is no file" in str(invoke("fit", tmp_path / "none.csv", *QUICK).exception)
    (tmp_path / "latin.csv").write_bytes("größe,demand\n1,2\n3,4\n".encode("latin-1"))
    assert "is not UTF-8 text" in str(invoke("fit", tmp_path / "latin.csv", *QUICK).exception)


def test_a_model_that_does_not_fit_the_file(trained, tmp_path):
    folder, _ = trained
    short = write(tmp_path / "short.csv", [["date", "promotion", "shop"], ["2024-07-01", 1, "a"]])
    assert "has no column 'temperature', which the model was trained on" in str(
        invoke("order", folder / "model", short).exception
    )
    words = write(tmp_path / "words.csv", [HEADER[:-1], ["2024-07-01", "warm", 1, "a"]])
    assert "Column 'temperature' of" in str(invoke("order", folder / "model", words).exception)
    empty = write(tmp_path / "empty.csv", [HEADER[:-1]])
    assert "has no rows below its header" in str(invoke("order", folder / "model", empty).exception)
    assert "is no saved model" in str(invoke("order", tmp_path, short).exception)
    record = json.loads((folder / "model" / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**record, "format": 99}))
    assert "has format 99" in str(invoke("order", tmp_path, short).exception)


def test_constant_demand_and_two_targets_just_work(tmp_path):
    rows = [[*row, 7.0] for row in days()]
    past = write(tmp_path / "past.csv", [[*HEADER, "other"], *rows])
    target = ("--target", "demand, other", *QUICK[2:])
    done = invoke("fit", past, *target, "--out", tmp_path / "model")
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert invoke("order", tmp_path / "model", past, "--out", tmp_path / "orders.csv").exit_code == 0
    written = read(tmp_path / "orders.csv")
    np.testing.assert_allclose([float(row["order_other"]) for row in written], 7.0, atol=0.6)
    assert "order_demand" in written[0]


def test_large_files_say_what_is_subsampled(trained, monkeypatch, tmp_path):
    from bilevelax.applications.newsvendor import weights
    from bilevelax.sklearn import _candidate

    monkeypatch.setattr(weights, "FOREST_ROWS", 30)
    monkeypatch.setattr(_candidate, "MOST_ROWS", 40)
    folder, _ = trained
    done = invoke("fit", folder / "past.csv", *QUICK, "--out", tmp_path / "model")
    assert "The forest sees 30 of the 60 rows, the policy 40; chosen at random." in done.output
    record = json.loads((tmp_path / "model" / "model.json").read_text())
    assert record["fitted"]["n_features_in_"] == 27  # 7 weekdays, 12 months, 4 waves of the year, 4 columns


def test_orders_in_packs():
    orders = np.array([[0.2, 8.9], [9.1, 15.0]])
    assert in_packs(orders, None, 0.0) is orders and in_packs(orders, 0, 0.0) is orders
    assert in_packs(orders, 1, 0.0).tolist() == [[0, 9], [9, 15]] and in_packs(orders, 1, 0.0).dtype.kind == "i"
    assert in_packs(orders, 6, 7.0).tolist() == [
        [12, 12],
        [12, 18],
    ]  # two packs are the least that hold 7; 15 is 2.5 packs
    assert in_packs(orders, 0.5, 0.0).tolist() == [[0.0, 9.0], [9.0, 15.0]]
    assert in_packs(orders, None, 9.0).tolist() == [[9.0, 9.0], [9.1, 15.0]]
    shared, room = (
        np.array([[3.6, 3.7, 2.7], [1.6, 1.5, 1.4]]),
        lambda days, *units, sizes=1.0: Room(np.array(days), np.array(units), np.full((2, 3), sizes)),
    )
    assert in_packs(shared, 1, 0.0, room([0, 1], 10.0, 9.0)).tolist() == [
        [3, 4, 3],
        [2, 2, 1],
    ]  # the second is not full
    assert in_packs(shared, 1, 0.0, room([0, 0], 14.5)).tolist() == [[4, 4, 3], [1, 1, 1]]
    assert in_packs(shared, 2, 0.0, room([0, 1], 9.9, 4.5)).tolist() == [[2, 4, 2], [2, 2, 0]]
    sized = room([0, 1], 14.5, 99.0, sizes=[2.0, 1.0, 2.0])  # 6 + 3 + 4 below, and 1.5 left: enough for the second
    assert in_packs(shared, 1, 0.0, sized).tolist() == [[3, 4, 2], [2, 2, 1]]
    for pack, minimum, name in ((-1, 0.0, "pack"), (np.inf, 0.0, "pack"), (1, -1.0, "minimum")):
        with pytest.raises(ValueError, match=f"`--{name}` must be a"):
            in_packs(orders, pack, minimum)


def test_a_service_level_is_a_cost():
    backlog = lambda *words, products=(): Prices(*words).checked().of(list(products))["backlog_cost"]
    assert backlog("2", None, "0.95") == pytest.approx(38.0) and backlog() == 3.0
    assert backlog("a=1,b=2", None, "0.75", products="ab") == pytest.approx([3.0, 6.0])
    assert backlog("1", None, "a=.9,others=.5", products="abc") == pytest.approx([9.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="say the same thing: give one of them"):
        backlog("1", "9", "0.9")
    for words in ("95", "a=95"):
        with pytest.raises(ValueError, match=r"between 0 and 1, such as .95. Got.*95"):
            backlog("1", None, words)


def test_costs_of_each_product():
    of = lambda words, products: numbers_option("backlog", words, products)
    assert of("fish=5, steak=9", ["steak", "fish"]) == [9.0, 5.0]
    assert of("fish=5, 2 / steak=7, others=1", ["1 / fish", "2 / steak", "3 / lamb"]) == [5.0, 7.0, 1.0]
    for words, sentence in {
        "steak=9": "it has none for 'fish'. Add it, or others=... for all the rest",
        "steak=9,fish=5,lamb=3": "names 'lamb', which is none of the products steak, fish",
        "steak=9,fish=much": "Got 'fish=much'",
        "steak=9,steak=5,fish=1": "gives 'steak' two numbers",
        "much": "such as steak=9,fish=9. Got 'much'",
        "-1": "`--backlog` must be a positive number. Got -1",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            of(words, ["steak", "fish"])
    with pytest.raises(ValueError, match="two numbers for the product '1 / fish', by '1' and by 'fish'"):
        of("1=3,fish=5", ["1 / fish"])
