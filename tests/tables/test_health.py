"""Input that is never silently wrong: cells as people write them, and what is said of suspicious data."""

import gzip
import re

import numpy as np
import pytest

pytest.importorskip("pandas")

import pandas as pd

from bilevelax.tables import health
from bilevelax.tables.csv_files import read_table, read_told, write_with
from bilevelax.tables.demands import targets_of
from bilevelax.tables.schema import learn_schema


def written(tmp_path, text, name="days.csv"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


@pytest.mark.parametrize(
    ("cells", "numbers", "note"),
    [
        (["60%", "5%"], [60, 5], "'60%' is read as 60"),
        (["$1.99", "$ 12"], [1.99, 12], "'$1.99' is read as 1.99"),
        (['"12,5"', "7"], [12.5, 7], "',' is the decimal mark"),
        (['"1,234"', '"12,000.5"'], [1234, 12000.5], "',' separates thousands"),
        (["1 234", "999"], [1234, 999], "'1 234' is read as 1234"),
        (["EUR 1.99", "12 USD"], [1.99, 12], "'EUR 1.99' is read as 1.99"),
        (["21.5 \u00b0C", "3"], [21.5, 3], "'21.5 \u00b0C' is read as 21.5"),
        (["3", "-", "?", "4"], [3, np.nan, np.nan, 4], "2 cells hold '-', '?' and count as missing"),
        (["3", "?", "4"], [3, np.nan, 4], "1 cell holds '?' and counts as missing"),
    ],
)
def test_numbers_as_people_write_them(tmp_path, cells, numbers, note):
    told = read_told(written(tmp_path, "a,b\n" + "".join(f"{cell},1\n" for cell in cells)))
    np.testing.assert_array_equal(told.table["a"], numbers)
    assert note in told.notes[0]


def test_a_point_beside_decimal_commas_separates_thousands(tmp_path):
    """8.140 was read as 8.14, and orders were of 12 instead of 12,000."""
    table, notes, _ = read_told(written(tmp_path, "rain;demand\n0,5;8.140\n1,5;12.000\n"))
    assert table["demand"].tolist() == [8140, 12000] and table["rain"].tolist() == [0.5, 1.5]
    assert notes == ["demand: '8.140' is read as 8140 ('.' separates thousands)"]


def test_a_point_before_three_digits_in_a_file_of_semicolons_is_asked_about(tmp_path):
    (tmp_path / "a.csv").write_text("rain;grams;demand\n" + "".join(f"{r};0.125;{r}.8{r}0\n" for r in range(1, 9)))
    told = read_told(tmp_path / "a.csv")
    assert told.notes == [
        "demand: '1.810' is read as 1.81. All its numbers have three digits after the point: if it separates "
        "thousands, write 1810"
    ]
    (tmp_path / "b.csv").write_text("rain;demand\n1;1.810\n2;2.82\n")
    assert not read_told(tmp_path / "b.csv").notes


def test_a_point_before_three_digits_beside_whole_numbers_is_asked_about(tmp_path):
    """960 and 1.440 in one column of a file of commas: 960 and 1440?"""
    told = read_told(written(tmp_path, "rain,demand\n0.125,960\n2.250,1.440\n3.375,1.040\n"))
    assert told.notes == [
        "demand: '1.440' is read as 1.44. All its numbers have three digits after the point: if it separates "
        "thousands, write 1440"
    ]
    assert read_told(written(tmp_path, "rain,demand\n1.125,960\n2.250,14.4\n")).notes == []


@pytest.mark.parametrize("name", ["Filiale", "artikel_nr", "store_nbr", "Item Number"])
def test_names_of_what_is_numbered(tmp_path, name):
    table = pd.DataFrame({name: [1, 2, 3] * 10, "rain": np.arange(30.0), "demand": np.arange(30.0)})
    assert learn_schema(table, ["demand"], None, "a.csv").columns[name]["kind"] == "category"


def test_few_words_among_numbers_are_named_and_many_are_words(tmp_path):
    rows = "".join(f"{i},{i}\n" for i in range(40))
    told = read_told(written(tmp_path, f"a,demand\n{rows}wet,1\n"))
    with pytest.raises(ValueError, match=r"Column 'a' of .* holds numbers, but 'wet' in row 41. Mend or empty"):
        learn_schema(told.table, ["demand"], None, "t", (), told.faults)
    asked = learn_schema(told.table, ["demand"], None, "t", ["a"], told.faults)  # the numbers are names
    assert {"7", "wet"} <= set(asked.columns["a"]["values"]) and len(asked.columns["a"]["values"]) == 41
    as_numbers = learn_schema(told.table[:40].astype({"a": float}), ["demand"], None, "t")
    with pytest.raises(ValueError, match=r"must hold numbers. Got 'wet' in row 41"):  # when ordering
        as_numbers.encode(told.table, "t")
    told = read_told(written(tmp_path, "a;demand\n" + "".join(f"{i},5;1\n" for i in range(40)) + "1.5;1\n"))
    assert "holds numbers, but '1.5' in row 41" in told.faults["a"]  # beside 12,5 no reading fits both
    assert read_table(written(tmp_path, "a,b\nwet,1\n3,1\ndry,2\n"))["a"].tolist() == ["wet", "3", "dry"]


@pytest.mark.parametrize("every", [3, 50])
def test_both_decimal_marks_in_one_column_are_refused_however_many(tmp_path, every):
    """With more than a few of them, the column was taken for words and dropped as an identifier."""
    rows = "".join(f'"{i},5",1\n' if i % every == 1 else f"{i}.5,1\n" for i in range(60))
    told = read_told(written(tmp_path, f"temp,demand\n{rows}"))
    with pytest.raises(
        ValueError, match=r"Column 'temp' of .* holds numbers, but '1,5' in row 2, and .* more such cells"
    ):
        learn_schema(told.table, ["demand"], None, "t", (), told.faults)


def test_numbers_that_are_names(tmp_path):
    rows = "".join(f"{i % 7},{i % 30},{i}\n" for i in range(60))
    table = read_table(written(tmp_path, f"store,week,demand\n{rows}"))
    kinds = lambda schema: {name: how["kind"] for name, how in schema.columns.items()}
    assert kinds(learn_schema(table, ["demand"], None, "t")) == {"store": "category", "week": "number"}
    asked = learn_schema(table, ["demand"], None, "t", ["week"])
    assert kinds(asked) == {"store": "category", "week": "category"}
    with pytest.raises(ValueError, match="`--category` names 'shop', which is no column of t"):
        learn_schema(table, ["demand"], None, "t", ["shop"])


@pytest.mark.parametrize("name", ["date", "Date", "DATUM"])
def test_a_column_of_dates_is_found_by_its_name(tmp_path, name):
    table = read_table(written(tmp_path, f"{name},demand\n2024-01-01,1\n2024-01-02,2\n"))
    assert learn_schema(table, ["demand"], None, "t").date == name


def demands(tmp_path, text, names):
    path = written(tmp_path, text)
    return targets_of(read_table(path), names, path)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (5000, "demand: 5000 in row 31 is 94 times the median. A typo?"),
        (1e12, "times the median. A typo?"),
        (-4, "demand: 1 demand is below 0 (-4 in row 31). Returns?"),
    ],
)
def test_suspicious_demands(tmp_path, value, sentence):
    rows = "".join(f"{i},{50 + i % 7}\n" for i in range(30))
    (finding,) = demands(tmp_path, f"a,demand\n{rows}30,{value}\n", ["demand"]).health
    assert sentence in finding


def test_ordinary_demands_are_not_suspicious(tmp_path):
    """Heavy tails of real shops: lognormal, and many days without a sale."""
    rng = np.random.default_rng(0)
    for values in (rng.lognormal(3, 0.8, 400), rng.poisson(0.7, 400), rng.negative_binomial(1, 0.1, 400)):
        assert health.demand_findings(values[:, None].astype(float), ["demand"], np.arange(400)) == []


def test_a_product_launched_late_is_named(tmp_path):
    rows = "".join(f"{i},{i},{i if i > 25 else ''}\n" for i in range(37))
    found = demands(tmp_path, f"a,old,new\n{rows}", ["old", "new"])
    assert len(found.y) == 11 and found.notes == ["26 rows without demand were left out"]
    assert found.health == [
        "new has no demand in 26 rows, which are lost for all products (11 of 37 remain). "
        "Fit it alone: one model for each --target"
    ]


def test_columns_that_leak_and_days_entered_twice():
    rng = np.random.default_rng(0)
    demand = rng.poisson(40, 60).astype(float)
    table = pd.DataFrame({"sold": 2 * demand + 1, "rain": rng.normal(size=60), "demand": demand})
    columns = {name: {"kind": "number"} for name in ("sold", "rain")}
    (leak,) = health.column_findings(table, columns, demand[:, None], ["demand"])
    assert leak.startswith("sold gives demand away")
    curved = pd.DataFrame({"sold": demand**3, "rain": table["rain"]})
    (leak,) = health.column_findings(curved, columns, demand[:, None], ["demand"])
    assert leak.startswith("sold gives demand away")
    near = pd.DataFrame({"sold": demand + rng.normal(0, 1.5, 60), "rain": table["rain"]})
    (question,) = health.column_findings(near, columns, demand[:, None], ["demand"])
    assert re.match(r"sold follows demand closely \(correlation 0\.9\d\)\. If it is not known before the day", question)
    loose = near.assign(sold=demand + rng.normal(0, 6, 60))
    assert health.column_findings(loose, columns, demand[:, None], ["demand"]) == []
    twice = pd.DataFrame({"date": ["d1", "d2", "d2", "d3", "d3"], "demand": [1, 2, 3, 4, 4]})
    (twin,) = health.repeated_findings(twice, ["demand"], np.arange(1, 6))
    assert twin.startswith("1 set of rows is equal but for their demand (rows 2 and 3)")
    assert health.repeated_findings(twice.drop(index=1), ["demand"], np.arange(1, 6)) == []  # a copy


def test_dates_that_could_be_read_otherwise():
    table = pd.DataFrame({"when": ["02/05/2024", "03/05/2024"]})
    (finding,) = health.date_findings(table, "when", True)
    assert finding.startswith("when: 02/05/2024 is read day first; no row tells it apart")
    assert health.date_findings(pd.DataFrame({"when": ["13/05/2024"]}), "when", True) == []
    (unused,) = health.date_findings(table, None, False)
    assert unused == "when looks like dates and is not used: name it with --date when"
    (serial,) = health.date_findings(pd.DataFrame({"when": [45292]}), "when", False)
    assert "spreadsheet's count of days" in serial


@pytest.mark.parametrize("start", [45292, 20240101])
def test_numbers_that_rise_by_days_are_dates(start):
    table = pd.DataFrame({"Tag": start + np.arange(20), "price": np.linspace(20_000, 70_000, 20).round()})
    (finding,) = health.date_findings(table, None, False)
    assert finding == "Tag looks like dates and is used as a number: name it with --date Tag"
    (spaced,) = health.date_findings(table.rename(columns={"Tag": "Order Day"}), None, False)
    assert spaced.endswith('--date "Order Day"')


def test_columns_that_are_not_used_are_told():
    """A column with many words among its numbers was dropped as an identifier, and nothing stood at the top."""
    degrees = [f"{i / 10}" for i in range(100)]
    words = [*degrees[:80], *["warm"] * 20]
    table = pd.DataFrame({"warm": words, "unit": [f"{each} deg" for each in degrees], "same": "a", "day": "2024-01-01"})
    schema = learn_schema(table.assign(rain=range(100), demand=range(100)), ["demand"], None, "t")
    mixed, unit = health.unused_findings(table, schema.ignored, np.arange(1, 101))
    assert mixed.startswith("warm is not used: 80 of 100 cells are numbers, but 'warm' in row 81 is none.")
    assert unit.startswith("unit is not used: 100 different words look like an identifier, such as '0.0 deg'.")


def test_rows_of_training_are_recognised():
    X, y = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    (finding,) = health.trained_on(X, y, X[:6], y[:6])
    assert finding.startswith("6 of 10 rows are rows that the model was trained on")
    assert health.trained_on(X[6:], y[6:], X[:6], y[:6]) == []


@pytest.mark.parametrize("ending", ["xlsx", "csv.gz", "parquet"])
def test_other_kinds_of_files_are_read_and_written(tmp_path, ending):
    pytest.importorskip("openpyxl" if ending == "xlsx" else "pyarrow")
    path, plain = tmp_path / f"days.{ending}", pd.DataFrame({"rain": [0.5, 1.5], "word": ["a", "b"], "demand": [3, 4]})
    if ending == "xlsx":
        plain.to_excel(path, index=False)
    elif ending == "parquet":
        plain.to_parquet(path)
    else:
        path.write_bytes(gzip.compress(plain.to_csv(index=False).encode()))
    assert read_table(path).to_dict("list") == plain.to_dict("list")
    out = tmp_path / "new" / f"orders.{ending}"
    assert write_with(path, {"order": np.array([1.25, 2.5])}, out) == []
    assert read_table(out)["order"].tolist() == [1.25, 2.5] and read_table(out)["word"].tolist() == ["a", "b"]


@pytest.mark.parametrize("beginning", [b"PAR1", b"\x1f\x8b\x08"])
def test_damaged_files_of_other_kinds(tmp_path, beginning):
    pytest.importorskip("pyarrow")
    (tmp_path / "t").write_bytes(beginning + bytes(200))
    with pytest.raises(ValueError, match=r"is no whole (parquet|gzip) file") as told:
        read_table(tmp_path / "t")
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("ending", ["xls", "ods", "json"])
def test_endings_whose_programs_read_no_csv_are_refused(tmp_path, ending):
    path = written(tmp_path, "a,demand\n1,2\n")
    with pytest.raises(ValueError, match=rf"`--out` must end in .csv, .csv.gz, .xlsx or .parquet. Got .*o.{ending}"):
        write_with(path, {"order": np.ones(1)}, tmp_path / f"o.{ending}")


def test_numbers_that_look_like_names_are_told():
    """Stores whose demand jumps from number to number; a month or a temperature that moves smoothly is none."""
    rng = np.random.default_rng(0)
    store, noise = rng.integers(1, 25, 400), rng.normal(0, 2, 400)
    table = pd.DataFrame({"branch_no": store, "degrees": rng.integers(-5, 30, 400)})
    kinds = {name: {"kind": "number"} for name in table}
    jumps = 50 + 10 * rng.normal(size=25)[store] + noise
    told = health.column_findings(table, kinds, jumps[:, None], ["demand"])
    assert len(told) == 1 and "branch_no" in told[0] and "--category branch_no" in told[0]
    smooth = 50 + 0.1 * store + 0.02 * (table["degrees"].to_numpy() - 10.0) ** 2 + noise
    assert health.column_findings(table, kinds, smooth[:, None], ["demand"]) == []


def test_a_day_with_a_second_row_is_told():
    days = pd.Series(pd.date_range("2024-01-01", periods=30))
    assert health.same_day_findings(days, np.arange(1, 31)) == []
    twice = pd.concat([days, days[[5]]], ignore_index=True)
    told = health.same_day_findings(twice, np.arange(1, 32))
    assert len(told) == 1 and told[0].startswith("1 row is of a day") and "2024-01-06 in rows 6 and 31" in told[0]
    assert health.same_day_findings(pd.concat([days, days], ignore_index=True), np.arange(1, 61)) == []  # a long table


def test_few_numbers_that_look_like_names_are_told():
    """Five stores, of which the third sells most; five steps of a promotion along which demand rises are none."""
    rng = np.random.default_rng(0)
    kiosk, step, noise = rng.integers(1, 6, 400), rng.integers(0, 5, 400), rng.normal(0, 2, 400)
    table = pd.DataFrame({"kiosk": kiosk, "step": step})
    kinds = {name: {"kind": "number"} for name in table}
    demand = np.array([0, 20, 50, 80, 10, 40.0])[kiosk] + 3 * step + noise
    (told,) = health.column_findings(table, kinds, demand[:, None], ["demand"])
    assert told.startswith("kiosk is used as a number, but its 5 whole numbers look like names")


def test_a_long_table_without_ids_is_told():
    days = pd.Series(pd.date_range("2024-01-01", periods=30))
    kinds = {"store no": {"kind": "category"}, "item": {"kind": "category"}, "rain": {"kind": "number"}}
    assert health.long_findings(days, kinds, "date") == []
    (told,) = health.long_findings(pd.concat([days] * 3, ignore_index=True), kinds, "date")
    assert told.startswith("date: most days have about 3 rows.") and '--id "store no",item: each' in told


def test_a_product_that_begins_with_zeros_is_told():
    y = np.column_stack([np.arange(50) % 3, np.where(np.arange(50) < 30, 0, 4)]).astype(float)
    told = health.zero_findings(y, ["old", "new"])
    assert len(told) == 1 and told[0].startswith("new is 0 on the first 30 of 50 rows")
