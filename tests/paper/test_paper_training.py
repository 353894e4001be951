"""Shared pieces of the training experiments: step rules, lanes, adaptation, and the newsvendor in the variable u."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications._softmax import adapted_scores
from bilevelax.applications.newsvendor import formulations
from bilevelax.estimators.maml import adapt
from bilevelax_paper import _newsvendor_looks as looks
from bilevelax_paper import _newsvendors as newsvendors
from bilevelax_paper import meta, training
from bilevelax_paper.items import catalogue
from bilevelax_paper.training import seed_keys


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """As a user would run them."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_settings_can_be_given_by_name():
    config = catalogue.load("fig1")
    assert config.settings("quick", 3, {"dataset": "omniglot"})["dataset"] == "omniglot"
    with pytest.raises(ValueError, match=r"This item has no setting .data.\. It has: dataset, .*seeds"):
        config.settings("quick", None, {"data": "omniglot"})
    with pytest.raises(ValueError, match="`dataset` of the meta-learning experiments must be one of 'auto'"):
        meta.load("mnist")


RULES = {
    training.Rule("paper", 0.1, 3): optax.sgd(bx.sqrt_then_linear(3, 0.1)),
    training.Rule("constant", 0.05): optax.sgd(0.05),
    training.Rule("adam", 0.02): optax.adam(0.02),
}


def test_a_rule_in_numbers_is_the_optimizer_of_minimize(quadratic, x):
    estimator = bx.rt_mlmc(2)
    key = seed_keys(2, training.ROLE_RUN)[1]
    programs = training.run_one._cache_size()
    for rule, optimizer in RULES.items():
        curve = training.train(quadratic, x, estimator, rule, seed=1, checkpoints=(0, 2, 5))
        run = bx.minimize(quadratic, estimator, optimizer, x, key=key, T=5, every=5)
        np.testing.assert_allclose(curve.x[0], x)
        np.testing.assert_allclose(curve.x[-1], run.x, rtol=1e-12)
        assert {name: int(a[-1]) for name, a in curve.cost.asdict().items()} == run.cost.asdict()
    assert training.run_one._cache_size() == programs + 1, "one program serves every rule"


def test_a_diverging_rule_is_never_the_best(quadratic, x):
    rules = [training.Rule("constant", 1e200), *RULES]
    loss = lambda xs: np.array([float(jnp.sum(x**2)) for x in xs])
    with np.errstate(all="ignore"):
        trials = training.tune(quadratic, x, bx.rt_mlmc(2), rules, loss, checkpoints=(0, 2, 5), seeds=2)
    assert trials[0].loss == np.inf and all(np.isfinite(trial.loss) for trial in trials[1:])
    assert training.best(trials, ("constant",)) == training.Rule("constant", 0.05)
    assert all(trial.loss == np.mean(trial.each) and len(set(trial.each)) == 2 for trial in trials[1:])
    assert training.checkpoints_of(100, 4) == (0, 6, 25, 56, 100)
    tried = training.grid(16, paper=[1.0], constant=[0.1], adam=[0.01], parts=[8, 2, 1])
    assert [rule.t0 for rule in tried if rule.kind == "paper"] == [2, 8, 16] and len(tried) == 5


def test_scores_are_those_of_the_application_and_of_maml():
    data = meta.load("synthetic", small=True)
    x = jax.tree.map(lambda a: a + 0.1 * random.normal(random.key(0), a.shape), data.x1)
    exact = adapted_scores(data.test, x).loss.mean()
    found = meta.losses(data.test, [x], [random.key(1)], meta.UNTIL_Y_STAR)
    np.testing.assert_allclose(found[0], exact, rtol=1e-6)
    how = meta.steps(3, 0.05).adaptation
    assert how.settings == (3, 0.05)
    y = adapt(random.key(2), data.test.averaged(meta.IMAGES), x, jnp.int32(1), *how.settings)
    again = how.adapt(random.key(2), data.test, x, jnp.int32(1), *how.settings)
    np.testing.assert_allclose(again["W"], y["W"], rtol=1e-12)


def test_both_levels_see_the_same_images_and_tuning_and_test_images_are_never_trained_on():
    data, other = (meta.load("synthetic", small=True, seed=seed) for seed in (0, 1))
    rows = lambda rows: {tuple(row) for row in np.asarray(rows.features).reshape(-1, rows.features.shape[-1])}
    parts = [rows(data.fit.data.train), *(rows(p.data.test) for p in (data.validate, data.test))]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 4 * 3 * 20
    assert rows(data.fit.data.test) == parts[0] and [len(part) for part in parts] == [4 * 3 * n for n in (16, 2, 2)]
    for problem in (data.validate, data.test):
        assert rows(problem.data.train) == parts[0]
    assert rows(other.test.data.test) != parts[2], "another seed is another split"
    assert other.fit.L_g1 == data.fit.L_g1, "and the same program"


def test_raw_features_are_left_as_they_are():
    raw, scaled = (meta.load("synthetic", small=True, norm=norm) for norm in (meta.RAW, 5.0))
    lengths = [np.linalg.norm(data.fit.data.train.features, axis=-1) for data in (raw, scaled)]
    np.testing.assert_allclose(lengths[1], 5.0, rtol=1e-6)
    assert lengths[0].std() > 0.1
    assert raw.fit.L_g1 >= meta.LAM + lengths[0].max() ** 2 / 2 * (1 - 1e-6)


WIDTHS, D = (4,), 3


@pytest.fixture(scope="module")
def season():
    return newsvendors.season(0, WIDTHS, d=D, M=4, m=5, points=10, starts=2)


def test_the_variable_u_leaves_the_newsvendor_as_it_is(season):
    lam, u = 0.7, jnp.array([0.3, -0.2, 0.5])
    book = season.book._replace(lam=jnp.asarray(lam))
    problem = dataclasses.replace(newsvendors.template(WIDTHS, D, False), data=book)
    xi = problem.context(random.key(3))
    order = newsvendors.order_of(WIDTHS, D)
    cost = lambda x, value, eta: newsvendors.smooth(order(x, value), eta)
    plain = formulations.wdro_si(cost, book.contexts, book.demands, lam, danskin=True)
    there = plain.nth_context(xi.row)
    y = xi.value + u / (2 * lam)
    x1 = jax.tree.map(lambda a: a[0], season.starts)
    args = x1, y, xi.eta, there
    np.testing.assert_allclose(problem.f(x1, u, xi.eta, xi), plain.f(*args), rtol=1e-12)
    np.testing.assert_allclose(problem.g(x1, u, xi.eta, xi), 2 * lam * plain.g(*args), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_problem_is_that_of_the_application_bit_for_bit(season, seed):
    """Values and gradients of f and g at random points, on a grid where no sum rounds: exactly equal."""
    grid = lambda a: jnp.round(a * 2**10) / 2**10
    keys = random.split(random.key(seed), 4)
    lam = 2.0 ** float(random.randint(keys[0], (), -3, 4))
    book = season.book._replace(contexts=grid(season.book.contexts), lam=jnp.asarray(lam))
    ours = dataclasses.replace(newsvendors.template(WIDTHS, D, False), data=book)
    order = newsvendors.order_of(WIDTHS, D)
    cost = lambda x, z, eta: newsvendors.smooth(order(x, z), eta)
    theirs = formulations.wdro_si(cost, book.contexts, book.demands, lam, danskin=True)
    xi = ours.context(keys[1])
    u = grid(random.normal(keys[2], (D,)))
    eta = ours.conditional(keys[3], xi)
    x = jax.tree.map(lambda a: a[seed % 2], season.starts)
    there, z = theirs.nth_context(xi.row), xi.value + u / (2 * lam)
    same = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
    same(ours.f(x, u, eta, xi), theirs.f(x, z, eta, there))
    same(ours.g(x, u, eta, xi), 2 * lam * theirs.g(x, z, eta, there))
    (slope_x, slope_u), (slope_x_too, slope_z) = ours.grad_f(x, u, eta, xi), theirs.grad_f(x, z, eta, there)
    same((slope_x, 2 * lam * slope_u), (slope_x_too, slope_z))
    same(ours.grad_g(x, u, eta, xi), theirs.grad_g(x, z, eta, there))
    assert float(jnp.linalg.norm(slope_u)) > 1e-3


def test_lanes_are_separate_runs(season):
    problem = dataclasses.replace(newsvendors.template(WIDTHS, D, False), data=season.book)
    settings = [(0, 2, 1.0, training.Rule("paper", 0.01, 2)), (1, 5, 0.1, training.Rule("adam", 0.01))]
    gaps = training.gaps_of((1, 3))
    estimator = newsvendors.by_levels("RT-MLMC", 2)
    lanes, keys = newsvendors.lanes_of(season.starts, settings), random.split(random.key(0), 2)
    together = newsvendors.run_lanes(problem, keys[0], lanes, gaps, estimator)
    twice = lambda tree: newsvendors.stack([tree, tree])
    seasons = newsvendors.run_seasons(problem, twice(season.book), keys, twice(lanes), gaps, estimator)
    for i, (start, m, lam, rule) in enumerate(settings):
        mine = dataclasses.replace(problem, data=season.book._replace(m=jnp.int32(m), lam=jnp.asarray(lam)))
        x1 = jax.tree.map(lambda a: a[start], season.starts)  # noqa: B023 (used at once)
        for j, key in enumerate(keys):
            alone = training.run_one(mine, x1, key, rule.numbers(), gaps, estimator=estimator)
            parts = jax.tree.leaves(together), jax.tree.leaves(seasons), jax.tree.leaves(alone.x)
            for a, b, c in zip(*parts, strict=True):
                np.testing.assert_allclose(b[j, i], c, rtol=1e-9, atol=1e-12)
                if j == 0:
                    np.testing.assert_allclose(a[i], c, rtol=1e-9, atol=1e-12)


def test_robust_runs_with_dear_moves_are_those_of_erm(season):
    """At a lambda without end the adversary stays: equal starts and keys then give equal runs."""
    found = newsvendors.estimators(2, 3, D)
    lanes = newsvendors.lanes_of(season.starts, [(1, 5, 1e12, training.Rule("paper", 0.01, 2))])
    problem = dataclasses.replace(newsvendors.template(WIDTHS, D, False), data=season.book)
    erm, robust = (
        newsvendors.run_lanes(problem, random.key(0), lanes, training.gaps_of((3,)), found[name])
        for name in ("ERM", "WDRO-SI")
    )
    for a, b in zip(jax.tree.leaves(erm), jax.tree.leaves(robust), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_bounds_of_training_costs(season):
    """A free class pays the quantile of each context; the affine program agrees where it can do the same."""
    free = looks.bounds(season, 5, affine=False)
    demands = np.asarray(season.book.demands)
    best = [min(float(looks.loss(w, row, looks.H, looks.B).mean()) for w in row) for row in demands]
    np.testing.assert_allclose(free.train_floor, np.mean(best), rtol=1e-12)
    contexts = np.asarray(season.book.contexts) / newsvendors.DEVIATION
    np.testing.assert_allclose(
        looks.affine_floor(contexts, demands, looks.H, looks.B), np.mean(best), rtol=1e-6
    )  # 4 contexts in R^3
    few = looks.affine_floor(contexts[:, :1], demands, looks.H, looks.B)
    assert free.train_floor < few < free.train_constant
    assert free.fit(np.array([free.train_constant, free.train_floor])).tolist() == [0.0, 1.0]


def test_the_adversary_of_an_affine_rule_is_known(season):
    """E g in u of an affine rule w' xi: its Hessian is I - l'' w w' / (2 lambda)."""
    x = newsvendors.first_x((), D, season.book, random.key(5))
    w = x.layers[-1].weight.ravel() / newsvendors.DEVIATION
    lam, m, order = 0.7, 5, newsvendors.order_of((), D)
    found = looks.adversary(newsvendors.stack([x]), jnp.array([lam]), jnp.array([m]), season.book, (), D)
    far, least = [], []
    for xi, demands in zip(season.book.contexts, season.book.demands, strict=True):
        cost = lambda v, demands=demands: newsvendors.smooth(order(x, v), demands).mean()
        y = xi
        for _ in range(100):
            y = y - (lam * 2 * (y - xi) - jax.grad(cost)(y)) / (4 * lam)
        far.append(jnp.linalg.norm(y - xi))
        bend = [(w @ jax.hessian(cost)(v) @ w) / (w @ w) for v in (xi, y)]
        least.append(1 - max(bend) / (2 * lam))
    np.testing.assert_allclose(found.distance[0], np.mean(far), rtol=1e-6)
    np.testing.assert_allclose(found.least[0], min(least), rtol=1e-6)
    np.testing.assert_allclose(found.most[0], 1.0, rtol=1e-6)


def test_demands_beyond_m_are_never_drawn(season):
    problem = newsvendors.template(WIDTHS, D, True)
    marked = season.book._replace(m=jnp.int32(2), demands=season.book.demands.at[:, 2:].set(jnp.nan))
    problem = dataclasses.replace(problem, data=marked)
    contexts = jax.vmap(problem.context)(random.split(random.key(0), 200))
    assert bool(jnp.all(jnp.isfinite(contexts.eta)))
    xi = jax.tree.map(lambda a: a[0], contexts)
    assert problem.conditional(random.key(9), xi) == xi.eta  # the adversary of WDRO sees it


def test_a_rule_that_is_not_finite_has_infinite_cost(season):
    xs = jax.tree.map(lambda a: jnp.stack([a[0], a[0] * jnp.nan]), season.starts)
    found = looks.costs(xs, jnp.array([5, 5]), season, WIDTHS, D)
    assert all(np.isfinite(cost[0]) and cost[1] == np.inf for cost in found)
