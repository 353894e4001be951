"""Sums over days, lags and holidays against what loops and calendars say."""

import numpy as np
import pandas as pd
import pytest

from bilevelax.tables import holidays, lags, series, stockouts
from bilevelax.tables.windows import History, over_period, sums


def history(seed=0):
    """Two series with gaps, in no order."""
    rng = np.random.default_rng(seed)
    rows = [(d, s) for s in (0, 1) for d in range(20_000, 20_060) if rng.random() < 0.8]
    rng.shuffle(rows)
    days, of = np.array(rows).T
    return History(days, of, rng.integers(0, 50, (len(rows), 2)).astype(float))


def test_sums_are_those_of_a_loop():
    past = history()
    first, last = np.array([20_000, 20_010, 20_030, 20_050]), np.array([20_006, 20_009, 20_045, 20_090])
    of = np.array([0, 1, 1, 0])
    total, rows = sums(past, of, first, last)
    for i in range(4):
        inside = (past.series == of[i]) & (past.days >= first[i]) & (past.days <= last[i])
        np.testing.assert_allclose(total[i], past.y[inside].sum(axis=0))
        assert rows[i] == inside.sum()
    assert sums(past, np.array([-1]), first[:1], last[:1])[1] == 0  # a product that is new


def test_demand_over_the_protection_period():
    past = History(np.arange(5), np.zeros(5, int), np.array([[1.0], [2], [3], [4], [5]]))
    y, missing = over_period(past, 3)
    np.testing.assert_array_equal(y[:, 0], [6, 9, 12, np.nan, np.nan])
    assert missing == 0
    y, missing = over_period(History(*(a[[0, 1, 3, 4]] for a in past)), 3)  # a closed day: nothing was asked for
    np.testing.assert_array_equal(y[:, 0], [3, 6, np.nan, np.nan])
    assert missing == 2


def test_lags_never_see_the_day_itself_or_later():
    days = np.arange(100, 160)
    y = np.arange(60.0)[:, None]
    past = History(days, np.zeros(60, int), y)
    how = lags.learn_lags([7, 14], y)
    made, told = lags.columns(how, ["d"], past, days, past.series)
    assert list(made) == lags.names(how, ["d"]) and told == []
    np.testing.assert_array_equal(made["d 7 days before"][30:], y[23:-7, 0])
    np.testing.assert_array_equal(made["d mean of 14 days"][30:], y[23:-7, 0] - 6.5)  # 14 days up to a week before
    changed = past._replace(y=np.where(days[:, None] > 140, 1e6, y))
    later, _ = lags.columns(how, ["d"], changed, days, past.series)
    for name in made:
        np.testing.assert_array_equal(later[name][:48], made[name][:48])  # day 147 is the first that may know of 141-7
    _, told = lags.columns(how, ["d"], past, np.array([166, 167]), np.zeros(2, int))
    assert told[0].startswith("1 rows have no known demand on the days before them")


def test_newer_rows_take_the_place_of_older_ones():
    old = History(np.array([1, 2]), np.zeros(2, int), np.array([[1.0], [2.0]]))
    both = old.then(History(np.array([2, 3]), np.zeros(2, int), np.array([[20.0], [30.0]])))
    assert both.days.tolist() == [1, 2, 3] and both.y[:, 0].tolist() == [1, 20, 30]


def test_holidays_and_the_days_around():
    pytest.importorskip("holidays")
    when = pd.Series(pd.to_datetime(["2024-10-02", "2024-10-03", "2024-10-04", "2024-12-31"]))
    made = holidays.columns(when, "DE")
    assert made["holiday"].tolist() == [False, True, False, False]
    assert made["day before a holiday"].tolist() == [True, False, False, True]  # New Year of the next year
    assert made["day after a holiday"].tolist() == [False, False, True, False]
    assert not holidays.columns(pd.Series(pd.to_datetime(["2024-08-15"])), "DE")["holiday"][0]
    assert holidays.columns(pd.Series(pd.to_datetime(["2024-08-15"])), "DE-SL")["holiday"][0]


def test_a_product_with_few_days_borrows_from_the_others():
    table = pd.DataFrame({"store": ["a"] * 95 + ["b"] * 5})
    y = np.where(table["store"] == "a", 10.0, 110.0)[:, None]
    made = series.learn_series(["store"], table, y)
    mean = y.mean()
    assert made["levels"] == pytest.approx([(950 + 5 * mean) / 100, (550 + 5 * mean) / 10])
    np.testing.assert_array_equal(series.numbers(made, pd.DataFrame({"store": ["b", "c"]})), [1, -1])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1, 0, 0], [1, 0, 0]),
        (["yes", "no", ""], [1, 0, 0]),
        ([5, 9, np.nan], [1, 0, 0]),
        ([True, False, True], [1, 0, 1]),
    ],
)
def test_what_says_that_a_day_sold_out(column, expected):
    y = np.array([[5.0], [7.0], [8.0]])
    made = stockouts.mask(pd.DataFrame({"out": column}), ["out"], ["demand"], y, "t.csv")
    assert made[:, 0].tolist() == [bool(value) for value in expected]


def test_words_that_say_neither():
    with pytest.raises(ValueError, match=r"must say yes or no \(1 or 0\), or hold the stock of the day. Got 'perhaps'"):
        stockouts.mask(pd.DataFrame({"out": ["yes", "perhaps"]}), ["out"], ["d"], np.ones((2, 1)), "t.csv")


def test_a_pile_of_equal_demands_is_asked_about():
    rng = np.random.default_rng(0)
    demand = rng.poisson(50, (300, 1)).astype(float)
    (asked,) = stockouts.pile_findings(np.minimum(demand, 55), ["bread"])
    assert asked.startswith("bread is 55 on ")
    (told,) = stockouts.chance_findings(np.minimum(demand, 55), ["bread"])
    assert "of past days are at 55 and none is above" in told and "less than told for orders of 55 and more" in told
    for usual in (demand, rng.poisson(0.7, (300, 1)), rng.lognormal(3, 1, (300, 1)), np.full((300, 1), 7.0)):
        assert stockouts.pile_findings(usual.astype(float), ["bread"]) == []
