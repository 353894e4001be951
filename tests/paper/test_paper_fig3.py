"""How Figure 3's records are read: choice on validation, pairing by seed, step rules that train."""

import numpy as np
import pytest

from bilevelax.base.sentences import written
from bilevelax.base.statistics import Interval, mean, within_seeds
from bilevelax_paper import formulations as claims
from bilevelax_paper import formulations as views
from bilevelax_paper.claims import Claim, Found, judged
from bilevelax_paper.item import Records
from bilevelax_paper.items import fig3
from bilevelax_paper.training import Rule, Trial, best

SETTINGS = {"m": [10], "lam": [1.0, 10.0], "wide": [0.1], "seeds": 2}


def row(method, seed, lam, validation, test, train=(2.0, 1.5)):
    equal = {"kind": "compare", "d": 7, "method": method, "decision": "network", "seed": seed, "m": 10, "lam": lam}
    columns = {"validation": list(validation), "test": list(test), "train": list(train), "spread": [1.0, 0.01]}
    return equal | columns | {"t": [1, 2]}


@pytest.fixture
def records():
    rows = [
        row("ERM", 0, 1.0, (3.0, 4.0), (0.3, 0.4)),
        row("ERM", 0, 10.0, (2.0, 5.0), (0.2, 0.5)),  # seed 0: the first checkpoint of this run
        row("ERM", 0, 0.1, (1.0, 1.0), (9.0, 9.0)),  # of the wider grid only
        row("ERM", 1, 1.0, (3.0, 1.0), (0.3, 0.1)),
        row("ERM", 1, 10.0, (2.0, 2.0), (0.2, 0.2)),
        row("ERM", 1, 0.1, (5.0, 5.0), (9.0, 9.0)),
    ]
    bounds = {"kind": "bounds", "d": 7, "m": 10, "decision": "network", "constant": 1.0}
    rows += [{**bounds, "seed": seed, "train_constant": 3.0, "train_floor": 1.0 + seed} for seed in (0, 1)]
    return Records(rows, {"settings": SETTINGS})


def test_runs_and_checkpoints_are_chosen_on_validation(records):
    group = views.Group(records, 7, "ERM")
    assert group.chosen([1.0, 10.0]).tolist() == [0.2, 0.1]
    assert group.chosen([0.1, 1.0, 10.0]).tolist() == [9.0, 0.1]
    assert group.ends([1.0, 10.0]).tolist() == [[0.4, 0.5], [0.1, 0.2]]
    np.testing.assert_allclose(group.fit(group.ends([1.0], "train")), [[0.75], [1.5]])
    assert views.share_flat(records, 7, "ERM") == 1.0
    assert views.gap(group, group, [1.0, 10.0]) == Interval(0.0, 0.0, 0.0)


def test_intervals_within_seeds_leave_out_what_seeds_share():
    noise = np.random.default_rng(0).normal(size=(200, 3))
    plain = [interval.high - interval.low for interval in map(mean, noise.T)]
    far = within_seeds(noise + 100 * np.arange(200)[:, None])
    np.testing.assert_allclose([i.high - i.low for i in far], plain, rtol=0.15)
    np.testing.assert_allclose([i.value for i in far], noise.mean(0) + 100 * 99.5)


def test_a_step_rule_must_train():
    slow, fast, other = Rule("paper", 0.1, 5), Rule("adam", 0.1), Rule("adam", 0.2)
    trials = [Trial(slow, np.ones(2), 0.2), Trial(fast, 2 * np.ones(2), 0.95)]
    trials.append(Trial(other, 3 * np.ones(2), 0.99))
    assert best(trials, ("paper", "adam")) == fast  # slow validates better, and is a constant
    assert best(trials, ("paper",)) == slow


def test_the_page_shows_where_a_claim_holds():
    found = Found({"here": Interval(-1.0, -2.0, -0.5), "there": Interval(-1.0, -2.0, 0.5)})
    claim = Claim("c", "p", lambda records: found, claims.FIRST, ["r"])
    (shown,) = judged([claim], Records([], {"settings": SETTINGS}))
    assert shown.lines["here"]["ours"].startswith("**") and not shown.lines["there"]["ours"].startswith("**")


def test_gains_that_no_figure_shows_are_named():
    tiny, large = Interval(-1e-4, -2e-4, -5e-5), Interval(-0.1, -0.2, -0.05)
    assert claims.too_small({"here": tiny, "there": large}, 2.0) == ["here"]
    assert claims.too_small({"there": large}, 2.0) == []
    claim = next(claim for claim in fig3.CLAIMS if claim.rule is claims.SEEN)
    verdict = lambda gain: claim.verdict(Found({"here": gain}, words={"cost": 2.0}))
    assert (verdict(tiny), verdict(large)) == ("partly", "reproduced")
    words = {"cost": 2.0, "visible": "0.1%", "too_small": ["here"]}
    about_K = fig3.CONFIG.texts["claims"]["larger_K"]["reading"]
    assert written(about_K, words).endswith("not to be seen in a figure: here.")
    assert written(about_K, {**words, "too_small": []}) == ""
