"""Smooth ranks against sorting and scikit-learn's ndcg_score; the problem's gradients against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from sklearn.metrics import ndcg_score

import bilevelax as bx
from bilevelax.applications import ndcg_ranking
from bilevelax.applications.ndcg_ranking import (
    exact_ndcg,
    linear,
    made_queries,
    ndcg_of_query,
    problem_of,
    queries_of,
)
from bilevelax.base.compiling import program

FEATURES, LABEL, COUNTS = made_queries(6, 9, 3, np.random.default_rng(0))
X = np.array([0.9, -0.4, 0.6])
ENDS = np.cumsum(COUNTS)[:-1]


def by_scikit_learn(scores, k):
    parts = zip(np.split(2.0**LABEL - 1, ENDS), np.split(scores, ENDS), strict=True)
    return np.array([ndcg_score([gain], [score], k=k) for gain, score in parts])


def smooth(scores, k, T):
    """Mean over queries with something relevant of the surrogate; scores in rows as given."""
    queries = queries_of(scores[:, None], LABEL, COUNTS, k)
    one = lambda s, gain, there: ndcg_of_query(s, gain, there, k, T)
    return np.asarray(jax.vmap(one)(jnp.asarray(queries.features[..., 0]), *map(jnp.asarray, queries[1:])))


@pytest.mark.parametrize("k", [None, 1, 5])
def test_sharp_ranks_give_ndcg_itself(k):
    scores = FEATURES @ X
    wanted = by_scikit_learn(scores, k)
    np.testing.assert_allclose(smooth(scores, k, 1e-4), wanted, atol=1e-4)
    queries = queries_of(scores[:, None], LABEL, COUNTS, k)
    np.testing.assert_allclose(exact_ndcg(queries.features[..., 0], queries, k), wanted, atol=1e-12)
    assert np.abs(smooth(scores, k, 1.0) - wanted).max() > 1e-2, "a blunt indicator is no rank"


def test_the_order_alone_counts():
    """Of NDCG any increasing map of the scores, of the surrogate a constant; twice the scores are other ranks."""
    scores = FEATURES @ X
    np.testing.assert_allclose(smooth(scores + 7, 5, 0.3), smooth(scores, 5, 0.3), rtol=1e-9)
    np.testing.assert_allclose(by_scikit_learn(np.exp(scores), 5), smooth(scores, 5, 1e-5), atol=1e-4)
    assert np.abs(smooth(2 * scores, 5, 0.3) - smooth(scores, 5, 0.3)).max() > 1e-3


def test_the_problem_is_minus_the_mean_surrogate():
    """Its exact gradient, through the lower level, against central differences of the surrogate."""
    k, T = 5, 0.5
    problem = problem_of(linear, queries_of(FEATURES, LABEL, COUNTS, k), k, T)
    n = problem.n_contexts
    batch = bx.minibatch(bx.saa("all"), n, contexts="spread")
    found = program()(lambda x: batch.estimate(random.key(0), problem, x, batch.init(problem, x))[0].grad)(
        jnp.asarray(X)
    )
    cost = lambda x: -smooth(FEATURES @ x, k, T).mean()
    steps = 1e-5 * np.eye(3)
    wanted = [(cost(X + e) - cost(X - e)) / 2e-5 for e in steps]
    np.testing.assert_allclose(found, wanted, atol=1e-7)
    assert np.abs(wanted).max() > 1e-2, "a flat surrogate would have no power"


def test_an_item_alone_and_queries_without_relevance():
    queries = queries_of(np.zeros((4, 1)), np.array([1, 0, 0, 0]), np.array([1, 3]), 5)
    assert queries.gain.tolist() == [[1, 0, 0], [0, 0, 0]]
    found = exact_ndcg(np.zeros((2, 3)), queries, 5)
    assert found[0] == 1 and np.isnan(found[1])


def test_the_application_learns_and_tells_bad_settings():
    app = ndcg_ranking.make(queries=8, items=6, d=2)
    solved = bx.solve(app.problem, app.x1, key=random.key(0), tol=0.05, budget_seconds=20)
    before, after = app.metrics(app.x1), app.metrics(solved.x)
    assert -solved.F.mean == pytest.approx(after["surrogate"], rel=1e-5)
    assert after["surrogate"] > before["surrogate"] + 0.1 and after["test_ndcg"] > before["test_ndcg"] + 0.1
    with pytest.raises(ValueError, match="`temperature` of ndcg_ranking must be a positive number"):
        ndcg_ranking.make(temperature=0.0)
