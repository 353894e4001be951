"""The evaluation for people: what it says is what the numbers are, and numbers are plain."""

import json
import re

import numpy as np
import pytest
from orders_evaluated import NAMES, evaluated

from bilevelax.base.text_table import NO_VALUE, as_text, plain
from bilevelax.cli.newsvendor import shown
from bilevelax.report.render import PAGE_FOLDER
from bilevelax.sklearn import evaluation, evaluation_page, plots
from bilevelax.sklearn._scored import Outcome
from bilevelax.sklearn.compare import tabulate

AMOUNTS = {
    12340.4: "12,340",
    1e9: "1,000,000,000",
    123.4: "123",
    99.96: "100",
    12.34: "12.3",
    1: "1.00",
    0.01234: "0.0123",
    0: "0",
    -1234.5: "-1,234",
    1e-9: "0.00000000100",
    1.6e-13: "0",
    None: NO_VALUE,
    np.nan: NO_VALUE,
}


@pytest.mark.parametrize(("value", "text"), AMOUNTS.items())
def test_amounts_have_no_exponent(value, text):
    assert plain(value) == text
    assert value is None or np.isnan(value) or value < 0 or plain(value, signed=True) == f"+{text}"


def test_the_headline_is_the_arithmetic():
    """2 products, 40 days: the rule pays 2 x 5 x 1 a day, the plain method 2 x 3 x 9."""
    made = evaluated()
    said = evaluation_page.headline(made, "day").replace("\N{NO-BREAK SPACE}", " ")
    assert "saves 1,760 (81.5 %)" in said and "it costs 400 instead of 2,160" in said  # 40 x 54 - 40 x 10
    saving = evaluation.saving_against(made, "quantile")
    assert saving.over == pytest.approx(-400) and saving.missing == pytest.approx(240) and saving.is_sure
    assert said.endswith("with the same order every day, with 400 more units left over and 240 fewer missing.")
    worse = evaluation_page.headline(evaluated(extra=-1.0), "day")  # the plain one orders 1 too many: 2 a day
    assert "costs 320" in worse and "more than the same order every day" in worse
    assert worse.endswith("units left over and 0 fewer missing.")
    even = evaluation_page.headline(evaluated(extra=-5.0), "day")
    assert "about as much" in even and re.search(r"with [\d,]+ \w+ units left over and [\d,]+ \w+ missing\.$", even)


def test_service_and_its_target():
    made = evaluated()
    np.testing.assert_allclose(evaluation.targets(made), np.full(made.outcome().demand.shape, 0.9))
    assert [row.service for row in evaluation.by_product(made)] == [1.0, 1.0]
    service = evaluation_page.tiles(made, "day", None)[0]
    assert service.value.startswith("100.0") and "target 90.0" in service.note and not service.bad
    short = evaluated()
    short.methods["robust"].orders_ -= 100
    outcomes = {name: Outcome.of(each, short.X, short.outcome().demand) for name, each in short.methods.items()}
    short = short._replace(comparison=tabulate(outcomes, outcomes["quantile"], "robust"))
    assert evaluation_page.tiles(short, "day", None)[0].bad


def test_likely_demand_is_of_each_product_and_of_their_sum():
    made = evaluated()
    rows = evaluation.drawn_rows(made)
    likely = evaluation.likely_demand(made, rows)
    past = made.methods["forest"].conditional_
    W = past.weights(made.X[rows]).toarray()
    for j, demand in enumerate((*past.y_.T, past.y_.sum(axis=1))):
        order = np.argsort(demand)
        cdf = np.cumsum(W[0][order])
        assert likely.low[0, j] == demand[order][np.searchsorted(cdf, 0.05 - 1e-9)]
        assert likely.high[0, j] == demand[order][np.searchsorted(cdf, 0.95 - 1e-9)]
    inside = (likely.low[:, :2] <= made.outcome().demand[rows]) & (made.outcome().demand[rows] <= likely.high[:, :2])
    assert likely.held == inside.mean()


def test_wrong_forecasts_leave_alone_who_does_not_look():
    curves = evaluation.wrong_forecasts(evaluated())
    assert curves["robust"] == pytest.approx([10] * 4) and curves["quantile"] == pytest.approx([54] * 4)
    assert len(set(curves["forest"])) > 1


def test_drivers_are_the_parts_of_the_order():
    """Of an additive rule, 3 x_0 + x_1 in each product, a part is its own term minus that of the mean past row."""
    made = evaluated()
    rule = made.methods["robust"]
    rule.predict = lambda X: np.stack([3 * X[:, 0] + X[:, 1]] * 2, axis=1)
    sizes = evaluation.driver_sizes(made, {"rain": [1], "sun": [0]})
    rows = made.X[np.unique(np.linspace(0, 39, evaluation.DRIVEN).astype(int))]
    past = made.methods["forest"].conditional_.X_
    past = past[np.unique(np.linspace(0, len(past) - 1, evaluation.COMPARED).astype(int))]
    expected = 2 * np.array([3, 1]) * np.abs(rows - past.mean(axis=0)).mean(axis=0)
    assert list(sizes) == ["sun", "rain"] and list(sizes.values()) == pytest.approx(expected)
    assert evaluation_page.drivers(made, {"sun": [0], "rain": [1]})[0].share == 1.0
    assert evaluation_page.drivers(made, {}) == []


def test_the_page_has_plain_numbers_dates_and_nothing_that_runs():
    text = evaluation_page.page(evaluated(scale=1000.0), "later.csv", ["a <note>"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    told = re.sub(r"(?s)<(script|style)>.*?</\1>|id=\"data\">.*?</script>", "", text)
    assert not re.search(r"\de[+-]?\d", told) and "10,000" in told and "2024-01-01 to 2024-02-09" in told
    assert "<script>fish" not in text and "&lt;/script&gt;&lt;script&gt;fish" in text and "a &lt;note&gt;" in text
    assert [each["name"] for each in data["orders"]["products"]] == ["All products", *NAMES]
    assert data["orders"]["x"][0] == 19723 and data["orders"]["dated"]  # days from 1970-01-01 to 2024-01-01
    colours = {line["name"]: line["colour"] for line in data["errors"]["lines"]}
    assert colours["this rule"] == data["orders"]["colour"] == 0 and len(set(colours.values())) == 3
    assert told.index(">this rule<") < told.index(">same order every day<")  # cheapest first
    undated = evaluation_page.page(evaluated(dates=False), "later.csv", [])
    assert "Orders for 40 rows" in undated and '"dated":false' in undated


def test_methods_have_one_colour_on_the_page_and_in_pictures(tmp_path):
    style = (PAGE_FOLDER / "style.css").read_text()
    assert tuple(re.findall(r"--c\d: light-dark\((#\w{6})", style)) == plots.COLOURS
    assert len({each.colour for each in evaluation_page.METHODS.values()}) == len(evaluation_page.METHODS)
    for dates in (True, False):
        path = plots.plot_orders(evaluated(dates=dates), tmp_path / "orders.svg")
        assert all(colour in path.read_text() for colour in (plots.COLOURS[0], plots.INK))


def test_rows_of_one_date_are_drawn_as_their_sum():
    """A picture of many stores was a zigzag between them."""
    made = evaluated()
    made = made._replace(dates=np.repeat(made.dates[:20], 2))
    where, orders, demand = plots._sums(made)
    assert len(where) == 20 and made.days_are_sums() and not evaluated().days_are_sums()
    assert demand == pytest.approx(made.outcome().demand.sum(axis=1).reshape(20, 2).sum(axis=1))
    assert orders == pytest.approx(demand + 20)  # 5 units too many for 2 products in 2 rows
    banded, summed = (evaluation_page.page(each, "later.csv", []) for each in (evaluated(), made))
    assert '"low"' in banded and '"low"' not in summed  # nor in the names above the chart


def test_the_table_fits_a_terminal_for_demands_in_the_thousands():
    table = evaluated(scale=1000.0).comparison.table.rename(index={"forest": "boosted quantile"})
    text = as_text(shown(table))
    assert "10,000" in text and "e+" not in text and max(map(len, text.splitlines())) <= 80
