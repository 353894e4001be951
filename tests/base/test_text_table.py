"""Tables as text, with and without rich."""

import importlib.util

import pytest

from bilevelax.base.text_table import NO_VALUE, Table, as_text, number, percent, show

TABLE = Table("Runs", ("run", "steps"), [("[red]a", "1,000"), ("b", NO_VALUE)])


def test_numbers_stand_to_the_right_and_markup_stays_text():
    title, heads, _, first, second = as_text(TABLE).splitlines()
    assert title == "Runs" and heads.split() == ["run", "steps"]
    assert first.startswith("[red]a") and len(first) == len(second) == len(heads)


def test_without_rich_columns_are_plain(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert as_text(TABLE).splitlines() == ["Runs", "run     steps", "[red]a  1,000", f"b       {NO_VALUE}"]


def test_columns_without_names_have_no_heading(capsys):
    show(Table("", ("", ""), [("a", "first"), ("b", "second")]), lambda cell: "bold" * (cell == "a"))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["a", "first"], ["b", "second"]]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(None, 3, NO_VALUE), (1234567, 3, "1,234,567"), (4.0, 3, "4"), (0.123456, 4, "0.1235"), (float("inf"), 3, "inf")],
)
def test_numbers(value, digits, text):
    assert number(value, digits) == text


def test_shares():
    assert percent(0.0512) == "5.1 %" and percent(1.0) == "100 %" and percent(-3.333) == "-333 %"
