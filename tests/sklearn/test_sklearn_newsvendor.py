"""RobustNewsvendor: what it solves, what it promises scikit-learn, and what it says to bad input."""

import dataclasses
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import bilevelax as bx
from bilevelax.applications.newsvendor import orders as _orders
from bilevelax.applications.newsvendor import policies, stored_rules
from bilevelax.applications.newsvendor import rows as _problem
from bilevelax.applications.newsvendor.prepare import Scaling
from bilevelax.run.run import CHUNKS
from bilevelax.sklearn import (
    BoostedQuantile,
    RobustNewsvendor,
    SampleAverage,
    WeightedSampleAverage,
    _moved,
    _search,
    _training,
    newsvendor,
)
from bilevelax.sklearn._curvature import warn_of_curvature
from bilevelax.sklearn._scored import CostColumn
from bilevelax.sklearn._settings import PATH
from bilevelax.sklearn.conditional import Forest, Groups
from bilevelax.tables.columns import move_scales

FIXED = dict(policy="mlp", conditional="forest")  # nothing is chosen
SMALL = dict(members=2, max_iter=20, n_atoms=8, batch_size=8, ascent_steps=2, random_state=0, **FIXED)
TINY = {**SMALL, "members": 1, "policy": "linear", "conditional": Forest(trees=5), "penalty": np.inf}
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "rows are drawn at random: repeating one is the same in law only"
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), rng.integers(0, 2, 60)])
    return X, 10 + 2 * X[:, 0] + 3 * X[:, 1] + rng.normal(size=60)


@pytest.fixture(scope="module")
def fitted(data):
    return RobustNewsvendor(1, 9, penalty=0.05, **SMALL).fit(*data)


@pytest.mark.parametrize("policy", ["linear", "mlp"])
def test_the_shape_of_rules_is_known_without_drawing_them(policy):
    factory = policies.make_policy(policy, "a test")
    x1, static = policies.members_of(factory, 3, 2, 2, 0)
    structure, shared = policies.shape_of_members(factory, 3, 2)
    assert structure == jax.tree.structure(x1) and shared == static


def test_orders_are_those_of_the_rule_written_out(data, fitted):
    """The mean over members of affine(z) + last(silu(hidden(silu(first(z))))), in numpy and double precision."""
    X, rule, prepared = data[0], fitted.policy_, fitted.prepared_
    z = prepared.contexts.clipped(X)
    layer = lambda part, i, a: a @ np.asarray(part.weight[i], float).T + np.asarray(part.bias[i], float)
    silu = lambda a: a / (1 + np.exp(-a))
    members = [
        layer(rule.affine, i, z) + layer(rule.last, i, silu(layer(rule.hidden, i, silu(layer(rule.first, i, z)))))
        for i in range(fitted.members)
    ]
    written_out = np.maximum(prepared.demands.back(np.mean(members, axis=0)), 0)[:, 0]
    np.testing.assert_allclose(fitted.predict(X), written_out, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`conditional` of RobustNewsvendor rests on")
@parametrize_with_checks([RobustNewsvendor(**TINY)], expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@parametrize_with_checks([SampleAverage(), WeightedSampleAverage(conditional="knn"), BoostedQuantile(n_estimators=5)])
def test_scikit_learn_contract_of_baselines(estimator, check):
    check(estimator)


def test_minimize_gives_the_same_policy(fitted):
    """The exposed problem with the exposed settings is the fit, bit for bit."""
    result = bx.minimize(fitted.problem_, **fitted.settings_)
    for again, arrays in zip(jax.tree.leaves(result.x), jax.tree.leaves(fitted._rule()[0]), strict=True):
        np.testing.assert_array_equal(again, arrays)


def test_shapes_and_scores(fitted, data):
    X, y = data
    orders = fitted.predict(X)
    assert orders.shape == y.shape
    over = orders - y
    expected = np.where(over > 0, over, -9 * over)
    np.testing.assert_allclose(fitted.decision_cost(X, y, per_row=True), expected)
    assert fitted.score(X, y) == pytest.approx(-expected.mean())
    assert len(fitted.loss_curve_) >= 2 and fitted.loss_curve_[-1] < fitted.loss_curve_[0]


def compiled():
    """Programs of steps, however compiled."""
    return sum(each._cache_size() for each in CHUNKS.values())


def test_folds_of_similar_size_compile_once(fitted, data):
    """60, 58 and 55 rows, other costs, other penalties: not one more program."""
    X, y = data
    programs = lambda: (compiled(), _orders._mean_order.cache_info().currsize)
    before = programs()
    assert before[0] > 0
    for n in (58, 55):
        RobustNewsvendor(2, 4, penalty=float(n), **SMALL).fit(X[:n], y[:n])
    assert programs() == before


def test_the_loss_is_the_smoothed_cost(fitted):
    """f at y = 0 is h (w - eta)^+ + b (eta - w)^+ up to the smoothing, in standardised units, over members."""
    problem, x = fitted.problem_, fitted._rule()[0]
    xi = _problem.context_at(3, problem.data)
    etas, weights = problem.outcomes(xi)
    assert etas.shape == (1, 1, 8) and float(weights.sum()) == 1
    orders = np.array([jax.tree.map(lambda a: a[i], fitted.policy_)(xi.value) for i in range(2)])  # noqa: B023
    over = orders[:, :, None] - np.asarray(etas[0])[None]
    h, b = float(xi.holding[0]), float(xi.backlog[0])
    assert b / h == pytest.approx(9)
    cost = np.mean(np.where(over > 0, h * over, -b * over), axis=(1, 2)).sum()
    y0 = problem.start(x, xi)
    gap = float(problem.f(x, y0, etas[0], xi)) - cost
    assert 0 <= gap <= 2 * (h + b) * np.log(2) / 20  # softplus(beta z) / beta - z^+ <= log 2 / beta


def test_worst_case_contexts(fitted, data):
    """They move where they may, cost the adversary less than they gain, and stay where nothing may move."""
    X, _ = data
    worst = fitted.worst_case_contexts(X)
    np.testing.assert_allclose(worst[:, 1], X[:, 1], rtol=1e-12)  # two values only: not a measurement
    assert np.abs(worst[:, 0] - X[:, 0]).max() > 1e-3
    problem, x = fitted.problem_, fitted._rule()[0]
    y = _moved.answers(problem, x, 50)
    for i in (0, 5, 9):
        xi = _problem.context_at(i, problem.data)
        eta = problem.outcomes(xi)[0][0]
        assert float(problem.f(x, y[i], eta, xi)) >= float(problem.f(x, 0 * y[i], eta, xi)) - 1e-9


def test_auto_is_the_exact_envelope_gradient(fitted, key):
    """On one repeated context, "auto" without ascent is grad_1 f at y = 0."""
    problem, x = fitted.problem_, fitted._rule()[0]
    one = problem.data._replace(cdf=np.ones_like(problem.data.cdf))  # row 0 always
    problem = _problem.newsvendor_problem(fitted._training().losses, one)
    found = jax.jit(lambda x: bx.envelope(4, 0, n="all").estimate(key, problem, x, ())[0].grad)(x)

    @jax.jit
    def expected(x):
        xi = _problem.context_at(0, one)
        return problem.grad_f(x, problem.start(x, xi), problem.outcomes(xi)[0][0], xi)[0]

    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def test_blocks_of_rows_give_the_same_orders(fitted, data, monkeypatch):
    """Any number of rows, any size of block: the rule at each clipped context, as it is written down."""
    X, _ = data
    rows = np.concatenate([X, 100 * X])[:101]  # some far outside the range of training
    z = fitted.prepared_.contexts.clipped(rows)
    rules = [jax.tree.map(lambda a, i=i: a[i], fitted.policy_) for i in range(2)]
    expected = fitted.prepared_.demands.back(np.mean([[rule(c) for c in z] for rule in rules], axis=0))[:, 0]
    for module, most in ((stored_rules, 2**15), (_orders, 0)):  # in NumPy, then by JAX
        monkeypatch.setattr(newsvendor, "WITHOUT_JAX", most)
        for block in (2**13, 32):
            monkeypatch.setattr(module, "ORDERED_AT_ONCE", block)
            for n in (101, 96, 33, 1):
                np.testing.assert_allclose(fitted.predict(rows[:n]), np.maximum(expected[:n], 0), rtol=1e-12)
    np.testing.assert_allclose(fitted.predict(np.asfortranarray(rows)), np.maximum(expected, 0), rtol=1e-12)


def test_large_offsets_survive_single_precision():
    """Seconds since 1970 are centred before they are rounded; beyond the range they count as its edge."""
    scaling = Scaling(np.array([1.7e9]), np.array([2.0]), np.array([1.7e9 - 4]), np.array([1.7e9 + 4]))
    x, static = policies.members_of(policies.linear, 1, 1, 1, 0)
    ones = jax.tree.map(lambda a: jnp.ones_like(a, jnp.float32), x)
    found = _orders.orders(static, ones, scaling, 1.7e9 + np.array([[0.0], [1.0], [9.0]]))
    np.testing.assert_allclose(found[:, 0], [1, 1.5, 3])


FOLDS = [(range(20), range(20, 40)), (range(40), range(40, 60))]


def test_folds_choose_steps_and_penalty(fitted, data):
    """Number, splitter and list of the same folds agree, in one program; costs are means over the folds."""
    programs = compiled()
    made = lambda cv, penalty="cv": RobustNewsvendor(1, 9, penalty=penalty, cv=cv, early_stopping=True, **SMALL).fit(
        *data
    )
    number, splitter, pairs = (made(cv) for cv in (2, TimeSeriesSplit(2), FOLDS))
    assert number.path_ == splitter.path_ == pairs.path_
    assert list(number.path_) == list(PATH) and number.penalty_ == min(number.path_, key=number.path_.get)
    alone = [made([fold], np.inf).path_[np.inf] for fold in FOLDS]
    assert number.path_[np.inf] == pytest.approx(np.mean(alone), rel=1e-12)
    assert compiled() == programs


def test_every_penalty_takes_the_same_steps_from_the_same_start_and_folds_stop_together():
    """No penalty is judged by a policy that others trained before it; steps are those of the mean curve."""
    curves = {0: [9, 5, 1, 7], 1: [9, 5, 6]}  # fold 1 gives up first: the third look of fold 0 does not count
    seen = []

    def train(fold, penalty, number, x, T):
        seen.append((fold, penalty, x, T))
        costs = curves[fold] if number == 0 else [9, 4 - number]
        history = [{"t": 50 * i, "validation": cost} for i, cost in enumerate(costs)]
        return _training.Trained(None, [(fold, number, i) for i in range(len(costs))], history, fold == 1)

    choice = _search.search([0, 1], (np.inf, 1.0, 0.3), "x1", train, 400, True)
    assert choice == (0.3, 100, {np.inf: 3.5, 1.0: 3.0, 0.3: 2.0}, [9, 5, 3.5], False)
    assert seen == [
        *((fold, np.inf, "x1", 400) for fold in (0, 1)),
        *((fold, 1.0, "x1", 100) for fold in (0, 1)),
        *((fold, 0.3, "x1", 100) for fold in (0, 1)),
    ]
    assert _search.search([0], (np.inf, 1.0), "x1", train, 400, False)[:2] == (1.0, 150)  # to the end, however dear


def test_a_penalty_too_small_for_the_theory_is_named(data):
    """least_penalty_ is half the largest eigenvalue of the cost's Hessian in the context; below it, a warning."""
    X, y = data
    with pytest.warns(UserWarning, match=r"is 0.0001, but the adversary's problem is strongly concave only from"):
        model = RobustNewsvendor(1, 9, penalty=1e-4, **SMALL).fit(X, y)
    least = model.least_penalty_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_curvature(least, 1.01 * least)
    with pytest.warns(UserWarning, match=f"Take a penalty of at least {least:.2g}"):
        warn_of_curvature(least, 0.99 * least)


def test_the_bound_is_the_curvature_of_the_cost(fitted):
    """Against the Hessian written out, at the rows themselves: the bound is no less than the largest there."""
    problem, x = fitted.problem_, fitted._rule()[0]
    flat = dataclasses.replace(problem, data=problem.data._replace(reach=jnp.asarray(fitted.move_scales_)))

    def largest(i):
        xi = _problem.context_at(i, flat.data)
        y0, eta = problem.start(x, xi), problem.outcomes(xi)[0][0]
        hessian = jax.hessian(lambda y: flat.f(x, y, eta, xi) + jnp.sum(y**2) / 2)(y0).reshape(y0.size, y0.size)
        return jnp.linalg.eigvalsh(hessian)[-1]

    at_rows = float(jnp.max(jax.jit(jax.vmap(largest))(jnp.arange(60)))) / 2
    assert 0.5 * at_rows < fitted.least_penalty_ < 2 * at_rows


def test_penalty_path_and_infinity(data):
    X, y = data
    chosen = RobustNewsvendor(1, 9, penalty="cv", **SMALL).fit(X, y)
    assert len(chosen.path_) == 5 and chosen.penalty_ == min(chosen.path_, key=chosen.path_.get)
    plain = RobustNewsvendor(1, 9, penalty=np.inf, **SMALL).fit(X, y)
    np.testing.assert_array_equal(plain.worst_case_contexts(X), X)


def test_several_products_with_costs_per_row(data):
    X, y = data
    Y = np.column_stack([y, 2 * y])
    model = RobustNewsvendor([1, 2], [9, 4], **SMALL).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    rows = RobustNewsvendor(**SMALL).fit(X, y, backlog_cost=np.linspace(1, 9, 60), holding_cost=1.0)
    assert rows.problem_.data.backlog.shape == (64, 1)
    ratio = np.asarray(rows.problem_.data.backlog / rows.problem_.data.holding)[:60, 0]
    np.testing.assert_allclose(ratio, np.linspace(1, 9, 60))


@pytest.fixture(scope="module")
def two_products():
    """Rows of two products that share nothing, in turn: (product, cost of a unit missing), demand."""
    rng = np.random.default_rng(1)
    product = np.arange(400) % 2
    return np.column_stack([product, np.where(product, 19.0, 1.0)]), rng.exponential(10, 400) + 50 * product


@pytest.mark.parametrize(
    "make",
    [
        lambda b: WeightedSampleAverage(1, b, conditional=Groups([0])),
        lambda b: WeightedSampleAverage(1, b, conditional=Groups()),
        lambda b: BoostedQuantile(1, b, n_estimators=1, random_state=0),
        lambda b: SampleAverage(1, b),
    ],
)
def test_costs_in_a_column_are_those_of_each_row(make, two_products):
    X, y = two_products
    model = make(CostColumn(1)).fit(X, y)
    orders = model.predict(X)
    paid = model.decision_cost(X, y, per_row=True)
    for b in (1.0, 19.0):
        own = X[:, 1] == b
        alone = make(b).fit(X, y)  # the same rows, at one level
        np.testing.assert_array_equal(orders[own], alone.predict(X)[own])
        np.testing.assert_allclose(paid[own], alone.decision_cost(X[own], y[own], per_row=True))


def test_a_rule_covers_each_row_as_often_as_its_costs_ask_for(two_products):
    X, y = two_products
    settings = SMALL | {"max_iter": 300, "n_atoms": 32, "batch_size": 32, "conditional": Groups([0])}
    model = RobustNewsvendor(1, CostColumn(1), penalty=np.inf, **settings).fit(X, y)
    orders, best = model.predict(X), WeightedSampleAverage(1, CostColumn(1), conditional=Groups([0])).fit(X, y)
    for product, level in ((0, 0.5), (1, 0.95)):
        own = X[:, 0] == product
        assert np.mean(orders[own] >= y[own]) == pytest.approx(level, abs=0.06)
    assert model.decision_cost(X, y) <= 1.02 * best.decision_cost(X, y)
    assert not RobustNewsvendor(1, CostColumn(1), perturb="all", **TINY).fit(X, y).move_scales_[1]
    assert clone(model).backlog_cost == CostColumn(1)
    with pytest.raises(ValueError, match="`backlog_cost` of SampleAverage is column 2 of X, which has 2 columns"):
        SampleAverage(1, CostColumn(2)).fit(X, y)


def test_many_levels_are_answered_by_a_few():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(1, 9, (300, 1)), rng.exponential(10, 300)
    model = SampleAverage(1, CostColumn(0)).fit(X, y)
    assert len(model.order_[0]) == 5
    levels = X[:, 0] / (1 + X[:, 0])
    exact = np.quantile(y, levels, method="inverted_cdf")
    assert np.abs(model.predict(X) - exact).max() < 5 and np.corrcoef(model.predict(X), exact)[0, 1] > 0.9


@pytest.mark.parametrize("name", ["rt_mlmc", "saa"])
def test_other_estimators(name, data):
    X, y = data
    model = RobustNewsvendor(1, 9, estimator=name, **{**TINY, "max_iter": 5, "batch_size": 2}).fit(X[:20], y[:20])
    assert np.isfinite(model.predict(X)).all()


def test_a_choice_from_a_handful_of_rows_is_none(data):
    X, y = data
    with pytest.warns(UserWarning, match="6 rows are too few to hold any out"):
        model = RobustNewsvendor(1, 9, **{**TINY, "penalty": "cv", "max_iter": 2}).fit(X[:6], y[:6])
    assert model.penalty_ == np.inf


def test_pipelines_grids_and_copies(data, tmp_path):
    X, y = data
    pipeline = make_pipeline(StandardScaler(), RobustNewsvendor(1, 9, **TINY))
    grid = GridSearchCV(pipeline, {"robustnewsvendor__penalty": [0.1, np.inf]}, cv=TimeSeriesSplit(2)).fit(X, y)
    orders = grid.predict(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(grid)).predict(X), orders)
    again = clone(grid.best_estimator_).fit(X, y)
    np.testing.assert_array_equal(again.predict(X), grid.best_estimator_.predict(X))


def test_skops(data, tmp_path):
    io = pytest.importorskip("skops.io")
    X, y = data
    model = RobustNewsvendor(1, 9, **SMALL).fit(X, y)
    io.dump(model, tmp_path / "model.skops")
    trusted = io.get_untrusted_types(file=tmp_path / "model.skops")
    assert all(name.startswith(("bilevelax.", "scipy.", "sklearn.")) for name in trusted)
    loaded = io.load(tmp_path / "model.skops", trusted=trusted)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_data_frames_keep_their_names(data):
    pandas = pytest.importorskip("pandas")
    X, y = data
    frame = pandas.DataFrame(X, columns=["warm", "open"])
    model = RobustNewsvendor(1, 9, perturb=["warm"], **TINY).fit(frame, y)
    assert list(model.feature_names_in_) == ["warm", "open"] and model.move_scales_.tolist() == [1, 0]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["open", "warm"]])


def test_perturb():
    values = np.column_stack([np.arange(20.0), np.arange(20) % 2])
    scales = lambda perturb, **kw: move_scales(perturb, values, kw.get("names"), kw.get("dtypes")).tolist()
    assert scales("auto") == [1, 0] and scales("all") == [1, 1] and scales("none") == [0, 0]
    assert scales([True, False]) == [1, 0] and scales([0.5, 2.0]) == [0.5, 2.0] and scales([1]) == [0, 1]
    assert scales({"b": 3}, names=["a", "b"]) == [0, 3]
    assert scales("float64", dtypes=[np.dtype(float), np.dtype(int)]) == [1, 0]


BAD = {
    "penalty": (dict(penalty=-1.0), "`penalty` of RobustNewsvendor must be a positive number"),
    "policy": (dict(policy="tree"), "`policy` of RobustNewsvendor must be one of 'linear', 'mlp'"),
    "conditional": (dict(conditional="magic"), "`conditional` of RobustNewsvendor must be one of 'forest'"),
    "estimator": (dict(estimator="magic"), "`estimator` of RobustNewsvendor must be one of 'auto'"),
    "cost": (dict(holding_cost=-1), "`holding_cost` of RobustNewsvendor must be positive"),
    "costs": (dict(backlog_cost=[1, 2, 3]), "must be one number, one for each of the 1 outputs"),
    "name": (dict(perturb=["warm"]), "names the column 'warm', which X does not have; X had no column names"),
    "mask": (dict(perturb=[True]), "must have one entry for each of the 2 columns"),
    "factor": (dict(perturb=[-1.0, 0.0]), "must hold factors >= 0"),
    "fraction": (dict(validation_fraction=1.0), "must lie between 0 and 1"),
    "cv": (dict(cv=1), "`cv` of RobustNewsvendor must be an integer >= 2"),
    "folds": (
        dict(cv=[([0, 1], [2, 3])]),
        "at least 4 rows to train on and 2 to judge by. Got one of 2 and 2 from 60 rows",
    ),
    "members": (dict(members=0), "`members` of RobustNewsvendor must be an integer >= 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(name, data):
    settings, sentence = BAD[name]
    with pytest.raises(ValueError, match=sentence):
        RobustNewsvendor(**{**TINY, **settings}).fit(*data)


def test_few_demands_are_worth_a_warning(data):
    X, y = data
    with pytest.warns(UserWarning, match="rests on about"):
        RobustNewsvendor(**{**TINY, "conditional": Forest(trees=1, min_samples_leaf=1)}).fit(X, y)
