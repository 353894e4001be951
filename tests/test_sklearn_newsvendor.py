"""RobustNewsvendor: what it solves, what it promises scikit-learn, and what it says to bad input."""

import jax
import numpy as np
import pytest

import bilevelax as bx

pytest.importorskip("sklearn")

from bilevelax.sklearn import RobustNewsvendor, _problem, _training

SMALL = dict(members=2, max_iter=20, n_atoms=8, batch_size=8, ascent_steps=2, random_state=0)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """optax's Adam raises a float to an integer power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), rng.integers(0, 2, 60)])
    return X, 10 + 2 * X[:, 0] + 3 * X[:, 1] + rng.normal(size=60)


@pytest.fixture(scope="module")
def fitted(data):
    return RobustNewsvendor(1, 9, penalty=3.0, **SMALL).fit(*data)


def test_minimize_gives_the_same_policy(fitted):
    """The exposed problem with the exposed settings is the fit, bit for bit."""
    result = bx.minimize(fitted.problem_, **fitted.settings_)
    for again, arrays in zip(jax.tree.leaves(result.x), jax.tree.leaves(fitted._x()), strict=True):
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


def test_folds_of_similar_size_compile_once(data):
    X, y = data
    RobustNewsvendor(1, 9, penalty=3.0, **SMALL).fit(X[:50], y[:50])
    programs = lambda: (_training.chunk_programs(), _problem._mean_order.cache_info().currsize)
    before = programs()
    for n in (51, 55, 60):
        RobustNewsvendor(1, 4, penalty=float(n), **SMALL).fit(X[:n], y[:n])
    assert programs() == before
