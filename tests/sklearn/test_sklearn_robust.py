"""RobustClassifier and RobustRegressor: what they minimise, what they choose, and scikit-learn's own checks."""

import numpy as np
import pytest
from jax import random
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import estimator_checks_generator

import bilevelax as bx
from bilevelax.sklearn import RobustClassifier, RobustRegressor

FIXED = [RobustClassifier("wasserstein", radius=0.1), RobustRegressor(lam=3.0, eps=0.1)]
CHOOSING = [RobustClassifier(), RobustRegressor()]


@pytest.fixture(scope="module")
def tumours():
    X, y = load_breast_cancer(return_X_y=True)
    return X[:200, :5], y[:200]


@pytest.fixture(scope="module")
def patients():
    X, y = load_diabetes(return_X_y=True)
    return X[:150], y[:150]


@pytest.mark.parametrize("estimator", FIXED + [pytest.param(e, marks=pytest.mark.slow) for e in CHOOSING], ids=str)
def test_scikit_learns_checks(estimator):
    for own, check in estimator_checks_generator(estimator):
        if getattr(check, "func", check).__name__ != "check_array_api_input":  # needs a flag of SciPy
            check(own)


def test_without_ambiguity_it_is_scikit_learns(tumours, patients):
    X, y = tumours
    Z = (X - X.mean(0)) / X.std(0)
    ours = RobustClassifier(None, alpha=0.05).fit(X, y)
    theirs = LogisticRegression(C=1 / (0.05 * len(X)), tol=1e-10, max_iter=1000).fit(Z, y)
    np.testing.assert_allclose(ours.coef_[0] * X.std(0), theirs.coef_[0], rtol=1e-4)
    X, y = patients
    Z = (X - X.mean(0)) / X.std(0)
    theirs = Ridge(alpha=0.05 * len(X), tol=1e-12).fit(Z, y)
    np.testing.assert_allclose(RobustRegressor(None, alpha=0.05).fit(X, y).predict(X), theirs.predict(Z), rtol=1e-5)


def test_the_fit_is_what_solve_finds_on_the_problem(tumours):
    """Through the lower level of the conditional stochastic problem, with another optimizer."""
    X, y = tumours
    model = RobustClassifier(lam=4.0, eps=0.3).fit(X[:64], y[:64])
    solved = bx.solve(model.problem_, model.x1_, key=random.key(0), tol=1e-5)
    ours = model.coef_[0] * X[:64].std(0)
    np.testing.assert_allclose(solved.x["w"], ours, atol=2e-4 * np.abs(ours).max())
    plain = RobustClassifier(None, alpha=1e-4).fit(X[:64], y[:64])
    assert np.linalg.norm(ours) < 0.5 * np.linalg.norm(plain.coef_[0] * X[:64].std(0)), "no power"


def test_more_caution_makes_shorter_rules(patients):
    X, y = patients
    lengths = [np.linalg.norm(RobustRegressor(lam=lam, eps=0.1).fit(X, y).coef_ * X.std(0)) for lam in (30.0, 3.0, 0.5)]
    assert lengths[0] > 1.05 * lengths[1] > 1.05**2 * lengths[2]
    assert lengths[2] ** 2 < 0.5 * y.var(), "beyond lam the cost is infinite"
    lengths = [np.linalg.norm(RobustRegressor("wasserstein", radius=r).fit(X, y).coef_) for r in (0.01, 0.1, 2.0)]
    assert lengths[0] > lengths[1] > lengths[2] and lengths[2] < 1e-3 * lengths[0]


def test_units_of_columns_and_target_do_not_matter(patients):
    X, y = patients
    model, scaled = (RobustRegressor(lam=3.0, eps=0.1).fit(a, b) for a, b in ((X, y), (1e4 * X + 7, 5 * y - 3)))
    np.testing.assert_allclose(scaled.predict(1e4 * X + 7), 5 * model.predict(X) - 3, rtol=1e-4)


def test_the_robust_choice_is_no_longer_than_the_best(tumours):
    X, y = tumours
    best, robust = (RobustClassifier("wasserstein", choice=c).fit(X, y) for c in ("best", "robust"))
    assert best.choice_.loss[best.choice_.best] == best.choice_.loss.min()
    at, top = robust.choice_.best, best.choice_.best
    assert robust.choice_.length[at] <= best.choice_.length[top]
    assert robust.choice_.loss[at] - best.choice_.loss[top] < 2 * robust.choice_.stderr[at]


def test_three_classes_and_probabilities():
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 20)
    X = rng.normal(size=(60, 2)) + 3 * np.eye(3)[np.repeat(range(3), 20)][:, :2]
    model = RobustClassifier(lam=5.0, eps=0.1).fit(X, y)
    shares = model.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert (model.classes_[shares.argmax(axis=1)] == model.predict(X)).all() and model.score(X, y) > 0.8
    assert np.isfinite(model.predict_proba(1e6 * X)).all()


def test_sentences(tumours):
    for wrong, message in (
        ({"ambiguity": "kl"}, "`ambiguity` of RobustClassifier must be one of 'sinkhorn', 'wasserstein', None"),
        ({"lam": -1.0}, "`lam` of RobustClassifier must be a positive number. Got -1.0"),
        ({"eps": "auto"}, "`eps` of RobustClassifier must be a positive number. Got 'auto'"),
    ):
        with pytest.raises(ValueError, match=message):
            RobustClassifier(**wrong).fit(*tumours)
    model = RobustClassifier("wasserstein", radius=0.1).fit(*tumours)
    with pytest.raises(ValueError, match=r"`problem_` is of ambiguity='sinkhorn'. Got 'wasserstein'"):
        _ = model.problem_
