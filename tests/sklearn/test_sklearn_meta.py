"""MetaClassifier and PersonalizedModel: what adapting solves, and which clients are scored how."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from bilevelax.sklearn import MetaClassifier, PersonalizedModel

QUICK = dict(lam=0.5, fit_intercept=False, max_iter=20, K=1, batch_size=2, random_state=0)


@pytest.fixture(scope="module")
def clients():
    """Six clients with two labels whose direction turns from client to client."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), 20)
    y = np.where(rng.random(120) < 0.5, "no", "yes")
    turn = np.stack([np.cos(0.6 * groups), np.sin(0.6 * groups)], axis=1)
    X = np.where(y == "yes", 1.0, -1.0)[:, None] * turn + 0.3 * rng.normal(size=(120, 2))
    return X, y, groups


@pytest.fixture(scope="module")
def fitted(clients):
    X, y, groups = clients
    seen = groups < 4
    return PersonalizedModel(**QUICK).fit(X[seen], y[seen], groups[seen])


def test_adapting_solves_the_proximal_problem(fitted, clients):
    """At the answer, the gradient of CE + lam/2 |W - centre|^2 vanishes."""
    X, y, groups = clients
    X, y = X[groups == 5], y[groups == 5]
    adapted = fitted.adapt(X, y)
    assert adapted.converged and adapted.W.shape == (2, 2)
    rows = 5.0 * X / np.linalg.norm(X, axis=1, keepdims=True)
    truth = (y[:, None] == fitted.classes_).astype(float)
    gradient = (adapted.predict_proba(X) - truth).T @ rows / len(X) + 0.5 * (adapted.W - fitted.centre_)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-3)
    assert not fitted.adapt(X, y, steps=1).converged


def test_padding_changes_nothing(fitted, clients):
    """Rows are padded to a power of two: 9 rows twice are 18, padded to 32 instead of 16."""
    X, y, _ = clients
    once, twice = fitted.adapt(X[:9], y[:9]), fitted.adapt(np.tile(X[:9], (2, 1)), np.tile(y[:9], 2))
    np.testing.assert_allclose(once.W, twice.W, atol=1e-6)


def test_scores_keep_clients_and_models_apart(fitted, clients):
    X, y, groups = clients
    support = np.arange(120) % 2 == 0
    table = fitted.scores(X, y, groups, support).set_index(["clients", "model"])
    assert table.loc[("known", "centre"), "n"] == 4 and table.loc[("new", "personalised"), "n"] == 2
    assert table.loc[("new", "personalised"), "accuracy"] > 0.9
    assert table.loc[("new", "personalised"), "accuracy"] > table.loc[("new", "centre"), "accuracy"]
    with pytest.raises(ValueError, match="must leave rows on both sides for client 0"):
        fitted.scores(X, y, groups, np.ones(120, bool))


def test_personalize_known_clients(fitted):
    made = fitted.personalize([0, 3])
    assert set(made) == {0, 3} and not np.allclose(made[0].W, made[3].W)
    with pytest.raises(ValueError, match="holds 5, which was not in the groups"):
        fitted.personalize([5])


def test_meta_classifier(clients):
    X, y, groups = clients
    model = MetaClassifier(**QUICK).fit(X, y, groups)
    assert model.problem_.f is not model.problem_.g
    assert set(model.predict(X)) <= {"no", "yes"} and model.predict_proba(X).shape == (120, 2)
    assert model.adapt(X[:4], y[:4]).score(X[:20], y[:20]) > 0.8


def test_bad_input(clients):
    X, y, groups = clients
    with pytest.raises(ValueError, match="must give each task at least 2 rows"):
        MetaClassifier(**QUICK).fit(X[:5], y[:5], np.array([0, 0, 0, 0, 1]))
    with pytest.raises(ValueError, match="`groups` of MetaClassifier must name the task"):
        MetaClassifier(**QUICK).fit(X, y, groups[:5])
    with pytest.raises(ValueError, match="holds 1 class only"):
        MetaClassifier(**QUICK).fit(X, np.full(120, "no"))


def test_adapting_needs_a_label_for_each_row(fitted, clients):
    X, y, _ = clients
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.adapt(X[:5], y[:6])


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [MetaClassifier(max_iter=2), PersonalizedModel(lam=1.0, max_iter=3)], ids=str)
def test_scikit_learns_checks(estimator):
    """Without groups, all rows are one client."""
    for own, check in estimator_checks_generator(estimator):
        if getattr(check, "func", check).__name__ != "check_array_api_input":  # needs a flag of SciPy
            check(own)
