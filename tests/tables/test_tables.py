"""CSV files as people have them: what is read from them, and what is said of them."""

import csv

import numpy as np
import pytest

pytest.importorskip("pandas")

import pandas as pd

from bilevelax.tables import calendar
from bilevelax.tables.csv_files import read_table, write_with
from bilevelax.tables.dates import dates_of, reads_day_first
from bilevelax.tables.schema import learn_schema, named


def table_of(tmp_path, text, name="days.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return read_table(path)


def schema_of(table):
    return learn_schema(table, ["demand"], None, "days.csv")


def days_of(table, schema=None):
    first = reads_day_first(table["date"]) if schema is None else schema.day_first
    return dates_of(table, "date", "days.csv", first).dt.strftime("%Y-%m-%d").tolist()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["2024-12-31", "2025-01-02"], ["2024-12-31", "2025-01-02"]),
        (["20241231", "20250102"], ["2024-12-31", "2025-01-02"]),
        (["31.12.2024", "02.01.2025"], ["2024-12-31", "2025-01-02"]),
        (["02.01.2025", "31.12.2024"], ["2025-01-02", "2024-12-31"]),
        (["02/01/2025", "31/12/2024"], ["2025-01-02", "2024-12-31"]),
        (["01/02/2025", "12/31/2024"], ["2025-01-02", "2024-12-31"]),
        (["2024-03-30 23:30:00+01:00", "2024-03-31 23:30:00+02:00"], ["2024-03-30", "2024-03-31"]),
        (["45657", "45659"], ["2024-12-31", "2025-01-02"]),  # as spreadsheets count days
        (["02/01/25", "31/12/24"], ["2025-01-02", "2024-12-31"]),
        (
            ["01/02/25", "02/02/25", "03/02/25"],
            ["2025-02-01", "2025-02-02", "2025-02-03"],
        ),  # days in a row
        (["2024-12-31T08:00:00Z", "2025-01-02T08:00:00Z"], ["2024-12-31", "2025-01-02"]),
    ],
)
def test_dates_are_read_as_they_are_meant(tmp_path, written, meant):
    table = table_of(tmp_path, "date,demand\n" + "".join(f"{day},{i}\n" for i, day in enumerate(written)))
    assert days_of(table) == meant


def test_later_files_are_read_as_the_first_was(tmp_path):
    """5 February stays 5 February in a file of one day."""
    schema = schema_of(table_of(tmp_path, "date,demand\n13/01/2024,1\n14/01/2024,2\n"))
    later = table_of(tmp_path, "date\n05/02/2025\n", "later.csv")
    assert schema.day_first and days_of(later, schema) == ["2025-02-05"]
    assert schema.report() == ["date: weekday and month, day first"]
    encoded, _ = schema.encode(later, "later.csv")
    assert encoded["month=2"].tolist() == [1] and encoded.filter(like="weekday").to_numpy().argmax() == 2


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("2024-12-31\n31.12.2024", "all written alike. Got '31.12.2024' in row 2"),
        ("4529\n4530", "Got .*4529.* in row 1"),
        ("20241231\n20241331", "Got .*20241331.* in row 2"),
        ("13/10/04\n13/10/05\n13/10/06", r"year first \('13/10/04' in row 1\).* Write dates as 2013-10-04"),
        ("2024-12-31\n", "must hold a date in every row. One is missing in row 2"),
    ],
)
def test_what_is_no_date_is_named(tmp_path, column, sentence):
    rows = "".join(f"{day},1\n" for day in column.split("\n"))
    with pytest.raises(ValueError, match=sentence):
        days_of(table_of(tmp_path, "date,demand\n" + rows))


def test_a_missing_date_column_is_the_files_fault(tmp_path):
    schema = schema_of(table_of(tmp_path, "date,demand\n2024-01-01,1\n2024-01-02,2\n"))
    with pytest.raises(ValueError, match=r"later.csv has no column 'date', which the model was trained on. Add it"):
        schema.encode(table_of(tmp_path, "day\n1\n"), "later.csv")


def test_a_separator_at_the_end_moves_nothing(tmp_path):
    table = table_of(tmp_path, "a,demand\n1,2,\n3,4,\n")
    assert table.to_dict("list") == {"a": [1, 3], "demand": [2, 4]}


def test_cells_without_a_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Row 2 of .* has 3 cells, but its first line names 2 columns. Name them all"):
        table_of(tmp_path, "a,demand\n1,2,\n3,4,5\n")


@pytest.mark.parametrize("head", ["a,demand,a", "a, demand, a "])
def test_two_columns_of_one_name_are_refused(tmp_path, head):
    with pytest.raises(ValueError, match=r"has two columns named 'a'. Rename one of them"):
        table_of(tmp_path, f"{head}\n1,2,3\n")


def test_a_target_named_twice_counts_once():
    assert named("demand, demand,other", ["demand", "other"]) == ["demand", "other"]


def test_separators_inside_quotes_are_text(tmp_path):
    table = table_of(tmp_path, '"a;b;c",demand\n1,2\n3,4\n')
    assert list(table.columns) == ["a;b;c", "demand"]


def test_decimal_commas_after_many_whole_numbers(tmp_path):
    rows = "".join(f"0;{i}\n" for i in range(60)) + "0,5;60\n"
    assert table_of(tmp_path, "rain;demand\n" + rows)["rain"].iloc[-1] == 0.5


def test_an_umlaut_far_down_is_told_of(tmp_path):
    rows = "".join(f"a,{i}\n" for i in range(200_000)) + "ä,1\n"
    with pytest.raises(ValueError, match="is not UTF-8 text: save it as CSV UTF-8"):
        table_of(tmp_path, "shop,demand\n" + rows, encoding="latin-1")


def test_a_category_keeps_its_name_in_other_company(tmp_path):
    """007 is read as 7, and as 7.0 beside a gap, in files where all values are numbers."""
    schema = schema_of(table_of(tmp_path, "product,demand\n007,1\n12,2\nA1,3\n"))
    for text in ("product\n007\n12\n", "product,b\n007,1\n12,2\n,3\n"):
        encoded, notes = schema.encode(table_of(tmp_path, text), "later.csv")
        assert encoded["product=7"].tolist()[:2] == [1, 0] and encoded["product=12"].tolist()[:2] == [0, 1]
        assert not any("007" in note or " 7" in note for note in notes)


def test_other_cells_are_written_as_they_were(tmp_path):
    path = tmp_path / "tomorrow.csv"
    path.write_bytes("\ufeffid;rain;word;gap\n007;0,50;NA;\n12;1,25;None;3\n".encode())
    assert write_with(path, {"order": np.array([1.5, 2.25])}, tmp_path / "new" / "orders.csv") == []
    with (tmp_path / "new" / "orders.csv").open(newline="") as file:
        written = list(csv.reader(file, delimiter=";"))
    assert written == [
        ["id", "rain", "word", "gap", "order"],
        ["007", "0,50", "NA", "", "1,5"],
        ["12", "1,25", "None", "3", "2,25"],
    ]


def test_what_dates_tell():
    """The smooth day of the year comes back after a year; the trend counts years; models of 0.1.0 have neither."""
    when = pd.Series(pd.to_datetime(["2023-01-01", "2023-07-02", "2024-01-01"]))
    made = calendar.columns(when, calendar.learn_calendar(when, "trend"))
    assert list(made) == calendar.names(calendar.learn_calendar(when, "trend"))
    waves = np.array([made[f"year {wave} {k}"] for k in (1, 2) for wave in ("sine", "cosine")])
    np.testing.assert_allclose(waves[:, 0], waves[:, 2], atol=0.03)
    np.testing.assert_allclose(np.sum(waves**2, axis=0), 2)  # two circles
    assert made["years"][0] == 0 and abs(made["years"][2] - 1) < 0.01
    assert calendar.names(None) == calendar.names(calendar.learn_calendar(when, "plain"))
    with pytest.raises(ValueError, match=r"`--dates` must be plain, season, trend or auto. Got 'none'"):
        calendar.learn_calendar(when, "none")


def test_months_and_years_that_were_not_seen_are_named():
    learned = calendar.learn_calendar(pd.Series(pd.to_datetime(["2023-01-01", "2023-02-03"])), "season")
    later = pd.Series(pd.to_datetime(["2023-03-01", "2023-08-01"]))
    assert calendar.unseen(later, learned, "date") == [
        "date: 2 rows are in months not seen in training (3, 8)",
        "date: the last row is 179 days after the last day of training; fit again with newer rows",
    ]
    assert calendar.unseen(later[:1].replace(later[0], pd.Timestamp("2023-02-09")), learned, "date") == []
    soon = pd.Series(pd.to_datetime(["2023-02-04", "2024-01-02", "2025-02-01"]))
    told = "date: 2 rows are in years not seen in training (2024, 2025)"
    assert calendar.unseen(soon, learned, "date")[0] == told
    assert calendar.unseen(pd.Series(pd.to_datetime(["2022-01-02"])), learned, "date") == [
        "date: 1 row is in years not seen in training (2022)"
    ]
