"""What the newsvendor's commands tell beside tables."""

from types import SimpleNamespace

import numpy as np
import pytest

from bilevelax.cli._newsvendor_later import drift
from bilevelax.cli._newsvendor_options import in_option_names, told_in_option_names
from bilevelax.cli._newsvendor_work import JudgedModel
from bilevelax.cli.newsvendor import fit_lines, health_block
from bilevelax.sklearn.conditional import Neighbours


def test_a_baseline_that_orders_is_named():
    rule = SimpleNamespace(fallback_=None, shift_=np.zeros(2))
    judged = JudgedModel(SimpleNamespace(rule=rule), None, [], [], None)
    assert judged.who_orders() == []
    rule.fallback_, rule.shift_ = "forest", np.array([0.0, 1.0])
    assert judged.who_orders() == ["What this model orders is the forest, corrected on days held out, as fit told."]
    rule.shift_ = np.zeros(2)
    assert judged.who_orders() == ["What this model orders is the forest, as fit told."]


def test_rows_are_counted_from_below_the_header():
    assert health_block([]) == ["Data health: nothing found to look at"]
    assert health_block(["rain: '12,5' is read as 12.5"])[0] == "Data health: 1 thing to look at"
    head, *told = health_block(["demand: 1 demand is below 0 (-4 in row 31)", "rows 2 and 3 are of one day"])
    assert head == "Data health: 2 things to look at (row 1 is the first below the header)"
    assert told[0] == "  ! demand: 1 demand is below 0 (-4 in row 31)"


def test_products_that_drift_alike_share_a_line():
    """A page for who pays does not begin with a box for each product."""
    X, past = np.zeros((30, 1)), np.tile(np.arange(60.0)[:, None], 3)
    conditional = Neighbours(k=60).fit(np.zeros((60, 1)), past)
    told = drift(conditional, X, np.tile([50.0, 5.0, 45.0], (30, 1)), ["lamb", "fish", "steak"])
    assert len(told) == 2 and "lamb, steak: demand of the last 30 rows is above that of earlier days like" in told[0]
    assert "at 76% to 84% of their range" in told[0] and "fish: demand" in told[1] and "at 9% of" in told[1]


def test_a_path_of_penalties_is_told_only_where_something_may_move():
    model = SimpleNamespace(penalty_=np.inf, n_iter_=60, path_={np.inf: 12345.6, 0.3: 20000.0}, tried_=[])
    assert fit_lines(model, [], ["lamb"]) == ["May move: nothing", "So there is no penalty to choose; 60 steps"]
    moved, price = fit_lines(model, ["rain"], ["lamb"])
    assert moved == "May move: rain"
    assert price == "Penalty inf, 60 steps (validation cost by penalty inf: 12,346, 0.3: 20,000)"


def test_sentences_of_the_estimator_name_options():
    told = in_option_names("`cv` of RobustNewsvendor must be an integer >= 2. Got 1.")
    assert told == "`--folds` must be an integer >= 2. Got 1."
    assert in_option_names("`conditional` of RobustNewsvendor rests on few.") == "The law of demand rests on few."
    assert in_option_names("This RobustNewsvendor was read.") == "This model was read."
    with pytest.raises(ValueError, match=r"^Orders must be finite"), told_in_option_names():
        raise ValueError("Orders of RobustNewsvendor must be finite.")
