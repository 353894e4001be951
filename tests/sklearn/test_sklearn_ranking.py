"""NDCGRanker: what it maximises, what it chooses, and scikit-learn's own checks."""

import numpy as np
import pytest
from jax import random
from sklearn.metrics import ndcg_score
from sklearn.utils.estimator_checks import estimator_checks_generator

import bilevelax as bx
from bilevelax.applications.ndcg_ranking import made_queries
from bilevelax.base.compiling import program
from bilevelax.sklearn import NDCGRanker


@pytest.fixture(scope="module")
def items():
    X, y, counts = made_queries(30, 8, 3, np.random.default_rng(1))
    return X, y, np.repeat(np.arange(30), counts)


@pytest.fixture(scope="module")
def fitted(items):
    return NDCGRanker(5, alpha=0.01).fit(*items)


def test_scikit_learns_checks():
    for own, check in estimator_checks_generator(NDCGRanker(alpha=0.1, max_iter=10)):
        if getattr(check, "func", check).__name__ != "check_array_api_input":  # needs a flag of SciPy
            check(own)


def test_score_is_that_of_scikit_learn(fitted, items):
    X, y, qid = items
    scores = fitted.predict(X)
    gains = 2.0**y - 1
    wanted = [ndcg_score([gains[qid == q]], [scores[qid == q]], k=5) for q in range(30) if gains[qid == q].any()]
    assert fitted.score(X, y, qid) == pytest.approx(np.mean(wanted))
    assert fitted.score(X, y, qid) > fitted.set_params(k=5).score(-X, y, qid) + 0.2, "the worst order is told apart"


def test_at_the_answer_the_gradient_of_the_problem_balances_the_penalty(fitted):
    """grad F + alpha x = 0, F by the conditional stochastic problem over (query, item) with all items of a query."""
    problem, x = fitted.problem_, fitted.x_
    batch = bx.minibatch(bx.saa("all"), problem.n_contexts, contexts="spread")
    grad = program()(lambda x: batch.estimate(random.key(0), problem, x, batch.init(problem, x))[0].grad)(x)
    relevant = np.mean(fitted._queries.gain.sum(axis=1) > 0)
    np.testing.assert_allclose(relevant * grad + 0.01 * x, 0, atol=2e-5)
    assert np.abs(0.01 * x).max() > 1e-2, "no power"


def test_rows_in_any_order_and_names_of_queries(fitted, items):
    X, y, qid = items
    order = np.random.default_rng(0).permutation(len(y))
    names = np.array([f"query {q:02d}" for q in qid])
    again = NDCGRanker(5, alpha=0.01).fit(X[order], y[order], groups=names[order])
    np.testing.assert_allclose(again.coef_, fitted.coef_, rtol=1e-3)
    shifted = X + 5 * (qid % 3)[:, None]  # what all items of a query share changes no order
    np.testing.assert_allclose(fitted.ndcg(shifted, y, qid), fitted.ndcg(X, y, qid))


def test_it_chooses_by_queries_left_out(items):
    model = NDCGRanker(5, cv=2, max_iter=20, random_state=0).fit(*items)
    assert model.choice_.ndcg[model.choice_.best] == model.choice_.ndcg.max()
    assert model.alpha_ == model.choice_.tried[model.choice_.best]
    assert model.coef_[0] > model.coef_[2] > 0, "made with weights 1, 0.71, 0.58"


@pytest.mark.slow
def test_a_network_learns_what_no_line_can():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1))
    y, qid = (np.abs(X[:, 0]) > 1).astype(int), np.repeat(np.arange(40), 10)
    line, network = (
        NDCGRanker(5, scores=s, alpha=1e-4, random_state=0).fit(X, y, qid).score(X, y, qid) for s in ("linear", "mlp")
    )
    assert network > 0.95 > 0.9 > line


def test_sentences(items):
    X, y, qid = items
    for wrong, message in (
        ({"scores": "tree"}, "`scores` of NDCGRanker must be one of 'linear', 'mlp'"),
        ({"k": 0}, "`k` of NDCGRanker must be an integer >= 1. Got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            NDCGRanker(**wrong).fit(X, y, qid)
    with pytest.raises(ValueError, match=r"labels between 0 and 60: the gain of a label l is 2\^l - 1. Got -1 to"):
        NDCGRanker().fit(X, y - 1, qid)
