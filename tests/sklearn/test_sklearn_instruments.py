"""IVRegressor against two-stage least squares in closed form, `solve`, and worlds whose truth is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from sklearn.utils.estimator_checks import parametrize_with_checks

import bilevelax as bx
from bilevelax.applications.instrumental_variables import Observed, linear, nearest, pairs
from bilevelax.problems.bases import Basis, Given
from bilevelax.sklearn import IVRegressor, Neighbours


def world(n=400, seed=0, strength=1.0):
    """A shock moves treatment and outcome; the instrument moves the treatment. y = 2 t - w + shock."""
    rng = np.random.default_rng(seed)
    z, w, shock = rng.normal(size=(3, n))
    t = strength * z + 0.5 * w + shock + 0.3 * rng.normal(size=n)
    return np.column_stack([t, w]), 1 + 2 * t - w + shock, np.column_stack([z, w])


def two_stages(X, y, Z):
    """By normal equations: b = (X' P X)^-1 X' P y, P the projection on the instruments."""
    X, Z = (np.column_stack([np.ones(len(y)), A]) for A in (X, Z))
    P = Z @ np.linalg.inv(Z.T @ Z) @ Z.T
    bread = np.linalg.inv(X.T @ P @ X)
    b = bread @ X.T @ P @ y
    e = y - X @ b
    free = len(y) - X.shape[1]
    robust = bread @ (X.T @ P * e**2) @ (P @ X) @ bread * len(y) / free
    return b, np.sqrt(np.diag(bread) * (e @ e) / free), np.sqrt(np.diag(robust))


def test_a_line_is_two_stage_least_squares():
    X, y, Z = world()
    fitted = IVRegressor().fit(X, y, Z)
    b, classical, robust = two_stages(X, y, Z)
    np.testing.assert_allclose([fitted.intercept_, *fitted.coef_], b, rtol=1e-9)
    np.testing.assert_allclose(fitted.stderr_, classical[1:], rtol=1e-8)
    np.testing.assert_allclose(fitted.robust_stderr_, robust[1:], rtol=1e-8)
    np.testing.assert_allclose(fitted.predict(X[:5]), b[0] + X[:5] @ b[1:], rtol=1e-9)
    assert abs(fitted.coef_[0] - 2) < 4 * fitted.stderr_[0]
    ignored = IVRegressor().fit(X, y)  # control: without the instrument the shock is taken for an effect
    assert ignored.coef_[0] - 2 > 0.3 and ignored.first_stage_ == []


def test_more_instruments_than_columns():
    X, y, Z = world()
    Z = np.column_stack([Z, Z[:, 0] ** 2, Z[:, 0] * Z[:, 1]])
    np.testing.assert_allclose(IVRegressor().fit(X, y, Z).coef_, two_stages(X, y, Z)[0][1:], rtol=1e-9)


def test_the_first_stage_is_an_f_test():
    X, y, Z = world()
    (stage,) = IVRegressor().fit(X, y, Z).first_stage_
    rss = [
        np.sum((X[:, 0] - A @ np.linalg.lstsq(A, X[:, 0], rcond=None)[0]) ** 2)
        for A in (np.column_stack([np.ones(400), Z[:, 1]]), np.column_stack([np.ones(400), Z]))
    ]
    assert stage.column == 0 and (stage.instruments, stage.rows) == (1, 397) and not stage.weak
    assert pytest.approx((rss[0] - rss[1]) / (rss[1] / 397), rel=1e-9) == stage.F
    assert str(stage).startswith("Column 0 of X: F(1, 397) = ")


@pytest.mark.parametrize("structural", ["linear", "kernel"])
def test_a_weak_instrument_is_told_in_a_sentence(structural):
    X, y, Z = world(strength=0.02)
    with pytest.warns(UserWarning, match=r"`Z` of IVRegressor is a weak instrument for column 0 of X") as told:
        IVRegressor(structural, components=8).fit(X, y, Z)
    assert len(told) == 1 and "\n" not in str(told[0].message)


def test_a_control_that_explains_much_does_not_hide_a_weak_instrument():
    """The treatment bends with w, which is no instrument: functions of w alone do not count as strength."""
    rng = np.random.default_rng(2)
    z, w, shock = rng.normal(size=(3, 600))
    t = np.cos(2 * w) * 3 + shock
    with pytest.warns(UserWarning, match="weak instrument"):
        IVRegressor("kernel", components=12).fit(np.column_stack([t, w]), t + shock, np.column_stack([z, w]))


def curved(n, seed=0):
    rng = np.random.default_rng(seed)
    z, shock = rng.uniform(-2, 2, n), rng.normal(size=n)
    t = z + 0.7 * shock + 0.2 * rng.normal(size=n)
    return t[:, None], np.sin(1.5 * t) + t - 2 * shock, z[:, None]


AT = np.linspace(-1.5, 1.5, 31)[:, None]
TRUE = np.sin(1.5 * AT[:, 0]) + AT[:, 0]


def error(model):
    return float(np.sqrt(np.mean((model.predict(AT) - TRUE) ** 2)))


@pytest.mark.parametrize("conditional", ["joint", "knn", "forest", Neighbours(30)])
def test_a_kernel_finds_a_curve_that_regression_misses(conditional):
    X, y, Z = curved(1500)
    found = IVRegressor("kernel", conditional=conditional, components=20, random_state=0).fit(X, y, Z)
    assert error(found) < 0.2 < 0.3 < error(IVRegressor("kernel", components=20).fit(X, y))


@pytest.mark.parametrize("conditional", ["joint", Neighbours(30)])
def test_a_network_finds_it_too(conditional):
    X, y, Z = curved(600)
    found = IVRegressor("network", conditional=conditional, components=8, width=8, random_state=0).fit(X, y, Z)
    assert error(found) < 0.4 and found.solved_.certified


def test_a_control_function_of_a_line_is_two_stage_least_squares():
    """What the instruments leave of the treatment beside it takes the shock: the coefficients are the same."""
    X, y, Z = world()
    fitted = IVRegressor(method="control").fit(X, y, Z)
    b = two_stages(X, y, Z)[0]
    np.testing.assert_allclose([fitted.intercept_, *fitted.coef_], b, rtol=1e-8)
    np.testing.assert_allclose(fitted.predict(X[:5]), b[0] + X[:5] @ b[1:], rtol=1e-8)
    rest = (
        X[:, 0]
        - np.column_stack([np.ones(400), Z])
        @ np.linalg.lstsq(np.column_stack([np.ones(400), Z]), X[:, 0], rcond=None)[0]
    )
    beside = np.linalg.lstsq(np.column_stack([np.ones(400), X, rest]), y, rcond=None)[0]
    np.testing.assert_allclose(fitted.shock_, beside[-1:], rtol=1e-7)
    assert not hasattr(fitted, "stderr_")  # those of this regression would not know of its first stage


def test_a_control_function_errs_less_where_it_may_be_used():
    """The shock of `curved` is proportional to what the instrument leaves, but for noise."""
    how, worlds = dict(structural="kernel", components=20), [curved(1500, seed) for seed in range(6)]
    control = [IVRegressor(method="control", **how).fit(*each) for each in worlds]
    assert np.mean([*map(error, control)]) < 0.8 * np.mean([error(IVRegressor(**how).fit(*each)) for each in worlds])
    slopes = [model.shock_[0] for model in control]  # of the shock, minus twice, on the rest
    assert abs(np.mean(slopes) + 2 * 0.7 / (0.7**2 + 0.2**2)) < 5 * np.std(slopes, ddof=1) / 6**0.5
    X, _, Z = worlds[0]
    nothing = IVRegressor(method="control", **how).fit(X, np.random.default_rng(1).normal(size=1500), Z)
    assert abs(nothing.shock_[0]) < 5 / (1500**0.5 * np.hypot(0.7, 0.2))


def test_a_control_function_without_instruments_is_regression():
    X, y, _ = curved(100)
    how = dict(structural="kernel", components=10)
    plain, control = IVRegressor(**how).fit(X, y), IVRegressor(method="control", **how).fit(X, y)
    np.testing.assert_array_equal(plain.predict(AT), control.predict(AT))


def test_solve_on_the_bilevel_problem_finds_the_closed_form():
    """Joint samples, and neighbours' means: the same minimiser by hypergradients and by one decomposition."""
    X, y, Z = world(60)
    columns = np.column_stack([np.ones(60), X])
    h = lambda x, eta: eta @ x
    basis = Basis("lines", lambda z: Given(lambda each: jnp.append(each, 1.0)), redundant=True)
    joint = bx.reduced(pairs(h, Observed(columns, y, Z), 1e-12), basis)
    found = bx.solve(joint, jnp.zeros(3), key=random.key(0), tol=1e-9, progress=False).x
    fitted = IVRegressor().fit(X, y, Z)
    np.testing.assert_allclose(found, [fitted.intercept_, *fitted.coef_], rtol=1e-5)
    near = nearest(linear, Observed(columns, y, Z), 1e-12, 5)
    found = bx.solve(near, jnp.zeros(3), key=random.key(0), tol=1e-9, progress=False).x
    fitted = IVRegressor(conditional=Neighbours(5)).fit(X, y, Z)
    np.testing.assert_allclose(found, [fitted.intercept_, *fitted.coef_], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(structural="cubic"), "`structural` of IVRegressor must be one of 'linear', 'kernel', 'network'"),
        (dict(method="guess"), "`method` of IVRegressor must be one of 'moments', 'control'"),
        (
            dict(structural="network", method="control"),
            "`method` of IVRegressor is 'control', which takes `structural`",
        ),
        (dict(conditional="knn", method="control"), r"'joint'\. Got 'linear' and 'knn'; leave `method`"),
        (dict(conditional="oracle"), "`conditional` of IVRegressor must be one of 'joint'"),
        (dict(alpha=-1.0), "`alpha` of IVRegressor must be a positive number"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        IVRegressor(**settings).fit(*world(20))


def test_too_few_instruments_are_refused():
    X, y, Z = world(50)
    with pytest.raises(ValueError, match=r"at least one instrument for each of the other 2\. Got 1"):
        IVRegressor().fit(X, y, Z[:, :1])


@parametrize_with_checks([IVRegressor(), IVRegressor("kernel", components=20, method="control")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_smooth_products_are_the_functions_they_say():
    Z = np.random.default_rng(0).uniform(1, 3, (40, 2))
    basis = bx.smooth_products(9)
    features = basis.fit(Z)
    which = np.asarray(features.which)
    assert which.tolist()[:4] == [[0, 0], [0, 1], [1, 0], [1, 1]] and len(which) == 9
    z = np.array([1.7, 2.9])
    u = (z - Z.min(0)) / np.ptp(Z, axis=0)
    one = lambda u, k: 1.0 if k == 0 else 2 * u - 1 if k == 1 else np.sqrt(2) * np.cos((k - 1) * np.pi * u) / k**2
    wanted = [one(u[0], i) * one(u[1], j) for i, j in which]
    np.testing.assert_allclose(jax.jit(lambda z: features(z))(jnp.asarray(z)), wanted, rtol=1e-6)
