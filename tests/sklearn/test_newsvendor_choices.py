"""What RobustNewsvendor chooses among: the entropic adversary, soft forests, calibration, fallback, the search."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from bilevelax.applications.newsvendor import entropic, policies
from bilevelax.applications.newsvendor.adversary import of_members
from bilevelax.applications.newsvendor.prepare import Scaling, WeightedDemands
from bilevelax.applications.newsvendor.rows import Rows, with_penalty
from bilevelax.estimators.envelope import envelope
from bilevelax.sklearn import (
    BoostedQuantile,
    LinearQuantile,
    RobustNewsvendor,
    _calibration,
    _choosing,
    _fallback,
    _settings,
)
from bilevelax.sklearn._candidate import BLEND, BOOSTED, LINEAR, RIVALS, SEARCHED
from bilevelax.sklearn._kept import KeepsRows
from bilevelax.sklearn.conditional import Dirac, Forest
from bilevelax.sklearn.persist import load_newsvendor, save_newsvendor
from bilevelax.sklearn.stored_forest import Boosts

QUICK = dict(members=2, max_iter=20, n_atoms=4, batch_size=8, ascent_steps=1, random_state=0)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MOVED = 0.7  # deviation of the noise


def quadratic(tilt):
    """c = (x z)^2 at xi = 1, z = 1 + 0.7 N(0, 1), with every node of a Gauss-Hermite rule as an outcome."""
    losses = of_members(entropic.entropic_losses(lambda x, z, eta, xi: jnp.sum((x * z) ** 2)))
    one = np.ones((1, 1))
    rows = Rows(one, one[:, None, None], one, one, np.ones(1), np.array([MOVED]), np.asarray(tilt))
    rows = jax.tree.map(lambda a: np.asarray(a, jnp.result_type(float)), rows)

    def support(xi, data):
        noise = jnp.asarray(NODES, float)[:, None]
        return entropic.Draw(jnp.ones((len(NODES), 1, 1)), noise), jnp.asarray(WEIGHTS, float)

    return entropic.entropic_problem(losses, rows).replace(support=support)


def exact(x, tilt):
    """The value, and its derivative in x, by the rule in NumPy."""
    cost, slope = (x * (1 + MOVED * NODES)) ** 2, 2 * x * (1 + MOVED * NODES) ** 2
    if tilt == 0:
        return WEIGHTS @ cost, WEIGHTS @ slope
    weights = WEIGHTS * np.exp(tilt * cost)
    return np.log(weights.sum()) / tilt, weights @ slope / weights.sum()


@pytest.mark.parametrize("tilt", [0.0, 0.1, 0.8])
def test_the_entropic_gradient_is_exact_on_outcomes(tilt):
    """One step finds the mean of the lower level; Danskin's gradient is that of the log-mean-exp."""
    problem, x = quadratic(tilt), jnp.full((1, 1), 0.6)
    found = jax.jit(lambda key: envelope(1, 1, n="all").estimate(key, problem, x, ()))(random.key(0))[0]
    np.testing.assert_allclose(found.grad, exact(0.6, tilt)[1], rtol=1e-4)
    untilted = exact(0.6, 0.0)[1]
    assert tilt == 0 or abs(float(found.grad[0, 0]) - untilted) > 0.02 * untilted  # the control: tilting matters


def test_the_entropic_value_has_its_limits():
    """Without tilt the mean over the noise (Gauss-Hermite); little noise is the adversary of eq. (11)."""
    assert exact(0.6, 1e-6)[0] == pytest.approx(0.36 * (1 + MOVED**2), rel=1e-5)
    # max_z (x z)^2 - lam (z - 1)^2 = x^2 lam / (lam - x^2), with lam = 1 and x = 0.6
    lam, noise = 1.0, 0.05
    rows = with_penalty(quadratic(0.0).data._replace(contexts=np.ones((1, 1))), np.ones(1), lam, noise)
    assert float(rows.tilt) == pytest.approx(1 / (2 * lam * noise**2)) and float(rows.reach[0]) == pytest.approx(noise)
    z = 1 + noise * np.linspace(-40, 40, 20_001)
    log_density = -(np.linspace(-40, 40, 20_001) ** 2) / 2 + float(rows.tilt) * (0.6 * z) ** 2
    top = log_density.max()
    value = (top + np.log(np.exp(log_density - top).sum() * 80 / 20_000 / np.sqrt(2 * np.pi))) / float(rows.tilt)
    assert value == pytest.approx(0.36 / (1 - 0.36), rel=0.01)


def test_phi_and_its_inverse():
    for a in (0.0, 0.5, 20.0):
        t = jnp.linspace(-0.5, 0.5, 7)
        np.testing.assert_allclose(entropic.inverse_phi(a, entropic.phi(a, t)), t, atol=2e-5)


def test_a_soft_forest_is_a_mean_of_leaves():
    forest = policies.NAMED["soft_forest"](5, 2, random.key(0))
    z = random.normal(random.key(1), (5,))
    shares = forest.shares(z)
    assert shares.shape == (20, 16)  # ceil(log2 5) + 1 levels
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    same = eqx.tree_at(lambda f: f.leaves, forest, jnp.full_like(forest.leaves, 3.0))
    np.testing.assert_allclose(same(z), 3.0, rtol=1e-5)
    # hard splits: the leaf on one side of the root only
    hard = eqx.tree_at(lambda f: (f.slopes, f.offsets), forest, (1e4 * forest.slopes, 1e4 * forest.offsets))
    assert set(np.asarray(hard.shares(z)).round(6).ravel()) == {0.0, 1.0}


def held(y, h=1.0, b=9.0):
    y = np.asarray(y, float)[:, None]
    return WeightedDemands(np.zeros_like(y), y, np.full_like(y, h), np.full_like(y, b), np.ones(len(y)))


def test_the_correction_is_the_critical_quantile():
    rng = np.random.default_rng(0)
    y = rng.normal(10, 2, 200)
    shift = _calibration.correction(np.full((200, 1), 8.0), held(y))
    assert shift[0] == np.sort(y - 8)[180]  # the 181st of 200: nine tenths of 201, for the next day is one more
    few = _calibration.correction(np.full((5, 1), 8.0), held(y[:5]))
    assert few[0] == 0


def test_calibration_is_judged_by_later_days():
    rng = np.random.default_rng(1)
    blocks = [held(rng.normal(10, 2, 100)) for _ in range(2)]
    low = [np.full((100, 1), 9.0)] * 2
    found = _calibration.calibrate(low, blocks, np.array([0.9]))
    assert found.before[0] < 0.5 and abs(found.achieved[0] - 0.9) < 0.08 and found.shift[0] > 2
    # demand fell since: the correction of the first block would have made the second dearer, and is not kept
    fell = [blocks[0], held(blocks[1].y[:, 0] - 6)]
    assert _calibration.calibrate(low, fell, np.array([0.9])).shift[0] == 0


def test_one_typo_does_not_move_the_scale_of_demand():
    y = np.random.default_rng(0).normal(50, 5, (300, 1))
    weights = np.ones(300)
    plain, typo = Scaling.of(y, weights, fenced=True), y.copy()
    typo[7] = 1e12
    fenced = Scaling.of(typo, weights, fenced=True)
    assert abs(fenced.scale[0] / plain.scale[0] - 1) < 0.2 and fenced.high[0] == 1e12
    assert Scaling.of(typo, weights).scale[0] > 1e9  # the control
    assert Scaling.of(y, weights).scale[0] == plain.scale[0]


@pytest.fixture(scope="module")
def chosen():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, RobustNewsvendor(1, 9, policy="mlp", **QUICK).fit(X, 10 + 2 * X[:, 0] + rng.normal(size=60))


def test_a_search_tells_what_it_did(chosen):
    X, model = chosen
    assert model.chosen_["policy"] == "mlp" and model.chosen_["conditional"] in ("forest", "dirac")
    tried = {each["conditional"] for each in model.tried_}
    assert tried == {"forest", "dirac"} and set(model.baseline_costs_) == {*RIVALS, BLEND}
    best = min(model.tried_, key=lambda each: each["cost"])
    assert all(best[name] == model.chosen_[name] for name in ("conditional", "penalty", "noise"))
    assert model.service_target_ == [0.9] and 0 <= model.service_achieved_[0] <= 1
    assert model.predict(X).shape == (60,)


def test_twenty_steps_lose_to_a_baseline_and_the_folder_knows(chosen, tmp_path, monkeypatch):
    """The linear truth after 20 steps: the linear quantile orders, from the folder too, where nobody fits it again."""
    X, model = chosen
    assert model.fallback_ == "linear quantile"
    orders = model.predict(X)
    save_newsvendor(model, tmp_path / "model", {})
    monkeypatch.setattr(LinearQuantile, "_regressor", None)  # would be called by a fit
    read, _ = load_newsvendor(tmp_path / "model")
    np.testing.assert_allclose(read.predict(X), orders, rtol=1e-6)
    np.testing.assert_array_equal(read.service_achieved_, model.service_achieved_)
    assert read.chosen_ == model.chosen_


@pytest.mark.parametrize(("rows", "used"), [(30_000, SEARCHED), (500, 500)])
def test_a_linear_quantile_that_orders_learns_from_no_more_rows_than_it_was_judged_on(rows, used, monkeypatch):
    """A linear program of a million rows took eleven gigabytes, and had not ended after two minutes."""
    seen = []
    monkeypatch.setattr(LinearQuantile, "fit", lambda self, X, y: seen.append((X[:, 0], y)) or self)
    model = KeepsRows()
    model.holding_cost, model.backlog_cost, model.seed_, model._baseline = 1.0, 9.0, 0, None
    model.fallback_, model._kept = LINEAR, (np.arange(float(rows))[:, None], np.arange(float(rows)))
    model._instead()
    ((contexts, demands),) = seen
    assert len(demands) == used and demands[0] == 0 and demands[-1] == rows - 1  # evenly spaced, to the last
    np.testing.assert_array_equal(contexts, demands)


def test_boosted_quantiles_that_order_are_kept_in_the_folder(chosen, tmp_path, monkeypatch):
    """Nobody fits them again to order; trees that are no trees, or too few of them, are refused."""
    X, fitted = chosen
    model = copy.copy(fitted)
    model.fallback_, model._baseline = BOOSTED, None
    orders, boosts = model.predict(X), model._instead().boosts_
    own = model._instead().regressors_[0][0].predict(X)
    np.testing.assert_allclose(boosts.answers(X, 0), own, rtol=1e-12)
    save_newsvendor(model, tmp_path / "model", {})
    monkeypatch.setattr(BoostedQuantile, "_regressor", None)  # would be called by a fit
    read, _ = load_newsvendor(tmp_path / "model")
    np.testing.assert_allclose(read.predict(X), orders, rtol=1e-12)
    columns = X.shape[1]
    assert (Boosts.read(boosts.stored(), columns).answers(X, 0) == boosts.answers(X, 0)).all()
    with pytest.raises(ValueError, match="unequally many trees"):
        Boosts.read({**boosts.stored(), "boosts_starts": np.zeros(7)}, columns)
    with pytest.raises(ValueError, match="nodes that no forest has"):
        Boosts.read({**boosts.stored(), "boosts_roots": np.array([-1.0])}, columns)
    with pytest.raises(ValueError, match="needs 1 sets of trees"):
        BoostedQuantile().with_stored(boosts._replace(starts=np.zeros(2)), X, X[:, 0])


def test_the_forest_behind_ranges_is_fitted_once(chosen, monkeypatch):
    """`order` asked twice, and fitted two forests of 20,000 rows."""
    model = copy.copy(chosen[1])
    if not model.prepared_.conditional.is_as_seen:
        model.prepared_ = model.prepared_._replace(conditional=Dirac().fit(chosen[0], chosen[0][:, :1]))
    forest = model._demand_given_contexts()
    monkeypatch.setattr(Forest, "_fit", None)
    assert isinstance(forest, Forest) and model._demand_given_contexts() is forest


class Judged:
    """Demand is 20 on every held-out day, and each unit of error costs 1; the forest orders 21."""

    sample = held(np.zeros(50))
    folds = ((held(np.arange(30.0)), held(np.full(20, 20.0))),)

    def forest_orders(self, fold):
        return np.full((20, 1), 21.0)

    def costs(self, placed):
        return [np.abs(placed[0][:, 0] - 20.0)]


@pytest.mark.parametrize(
    ("order", "wanted"), [(21.005, BLEND), (21.5, "forest"), (19.0, BLEND), (20.0, None), (20.5, None)]
)
def test_baselines_must_be_clearly_better(order, wanted):
    """By more than 1 %; the mean of rule and forest, which hedges, by anything."""
    model = RobustNewsvendor(1, 9)
    model.seed_ = 0
    name, theirs, means = _fallback.better_baseline(model, Judged(), [np.full((20, 1), order)])
    assert name == wanted and means["forest"] == 1.0 and means[BLEND] == pytest.approx(abs((order + 21) / 2 - 20))
    assert not theirs if wanted is None else theirs[0][0, 0] == {"forest": 21.0, BLEND: (order + 21) / 2}[wanted]


def test_one_stretch_of_days_is_no_evidence():
    """Errors are those of blocks: a small lead that comes from ten days in a row does not beat a simpler order."""
    quantile = [np.full(60, 5.0)] * 2
    one = [np.where((np.arange(60) >= 20) & (np.arange(60) < 30), 5.0 - lead, 5.14) for lead in (0.0, 2.4)]
    every = [np.full(60, 5.0 - 0.12 - 0.02 * (np.arange(60) % 2))] * 2
    assert 0.05 < 5.0 - np.mean(one) < 5.0 - np.mean(every) < 0.15  # all of them are cheaper by more than 1 %
    assert _fallback.preferred({"quantile": quantile, "boosted quantile": one}) == "quantile"
    assert _fallback.preferred({"quantile": quantile, "boosted quantile": every}) == "boosted quantile"
    again = [each[::-1] for each in one]
    assert _fallback.preferred({"boosted quantile": one, "forest": again}) == "forest"  # even: the simpler one
    assert _fallback.preferred({"quantile": quantile, _fallback.RULE: one, BLEND: quantile}) == _fallback.RULE


def test_an_outage_in_the_training_rows_does_not_move_the_correction():
    """Orders two units too low on the days held out, some of which had no demand at all."""
    rng = np.random.default_rng(1)
    blocks = [rng.normal(10, 2, 100) for _ in range(2)]
    broken = [held(np.where(np.arange(100) % 100 < 6, 0.0, y)) for y in blocks]
    low = [np.full((100, 1), 9.0)] * 2
    plain = _calibration.calibrate(low, [held(y) for y in blocks], np.array([0.9])).shift[0]
    assert abs(_calibration.calibrate(low, broken, np.array([0.9])).shift[0] - plain) < 0.5


def test_a_blend_orders_the_mean_and_its_folder_fits_no_forest(chosen, tmp_path, monkeypatch):
    X, fitted = chosen
    model = copy.copy(fitted)
    model.shift_, model._baseline = np.zeros(1), None
    by = {}
    for name in (None, "forest", BLEND):
        model.fallback_, model._baseline = name, None
        by[name] = model.predict(X)
    np.testing.assert_allclose(by[BLEND], (by[None] + by["forest"]) / 2, rtol=1e-12)
    assert np.abs(by[None] - by["forest"]).max() > 0.1
    save_newsvendor(model, tmp_path / "model", {})
    monkeypatch.setattr(Forest, "_fit", None)  # would be called by a fit
    read, _ = load_newsvendor(tmp_path / "model")
    np.testing.assert_allclose(read.predict(X), by[BLEND], rtol=1e-6)


def test_an_entropic_rule_trains_and_moves_where_it_may():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=30), rng.integers(0, 2, 30)])
    how = dict(policy="soft_forest", conditional="forest", ambiguity="entropic", penalty=0.1, noise=0.3)
    model = RobustNewsvendor(1, 9, **how, **QUICK).fit(X, 10 + X[:, 0] + rng.normal(size=30))
    assert model.chosen_["ambiguity"] == "entropic" and model.penalty_ == 0.1
    worst = model.worst_case_contexts(X)
    np.testing.assert_array_equal(worst[:, 1], X[:, 1])
    assert 1e-4 < np.abs(worst[:, 0] - X[:, 0]).max() < 3 * 0.3
    assert np.isnan(model.service_achieved_).all()  # nothing was chosen, so nothing held out


def test_steps_grow_with_rows_and_folds_with_time():
    assert [_settings.steps_for(None, n) for n in (600, 3_000, 10_000, 10**5)] == [800, 1_200, 1_600, 2_400]
    assert _settings.steps_for(30, 10**6) == 30
    assert _choosing.rolling_splits(100, 0.2) == [(slice(60), slice(60, 80)), (slice(80), slice(80, 100))]
    assert _choosing.rolling_splits(100, 0.4) == [(slice(60), slice(60, 100))]


def test_ambiguity_is_checked():
    with pytest.raises(ValueError, match="`ambiguity` of RobustNewsvendor must be one of"):
        RobustNewsvendor(ambiguity="magic").fit(np.ones((10, 1)), np.ones(10))


def test_a_network_on_rows_as_they_are_starts_small():
    """On any smoother conditional, and with any other rule, it starts as drawn."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    how = QUICK | dict(penalty=np.inf)
    start = lambda rule, seen: RobustNewsvendor(policy=rule, conditional=seen, **how).fit(X, X[:, 0]).settings_["x1"]
    small, drawn = start("mlp", "dirac").first, start("mlp", "forest").first
    np.testing.assert_allclose(small.weight, policies.FIRST * drawn.weight, rtol=1e-6)
    np.testing.assert_array_equal(small.bias, drawn.bias)
    mine = start(lambda columns, outputs, key: policies.mlp(columns, outputs, key), "dirac").first  # the user's own
    assert np.abs(mine.weight).max() > 5 * np.abs(small.weight).max()


def test_a_small_start_finds_the_one_direction_that_demand_depends_on():
    """400 rows of 20 columns: the usual start overfits the directions it was drawn with."""
    rng = np.random.default_rng(0)
    X, way = rng.normal(size=(4_400, 20)), rng.normal(size=20) / 20**0.5
    mean = np.sin(2 * X @ way) + 2 * np.exp(-4 * (X @ way) ** 2)
    y = 10 + mean + 0.3 * rng.normal(size=len(X))
    few = dict(conditional="dirac", penalty=np.inf, ambiguity=None, members=2, max_iter=400, random_state=0)
    usual = lambda columns, outputs, key: policies.mlp(columns, outputs, key)
    costs = {
        name: RobustNewsvendor(1, 1, policy=rule, **few).fit(X[:400], y[:400]).decision_cost(X[400:], y[400:])
        for name, rule in {"small": "mlp", "usual": usual}.items()
    }
    assert costs["small"] < 0.9 * costs["usual"], costs
