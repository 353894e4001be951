"""Demand behind stock-outs: the textbook's table, Efron's identity, a law that is known, and what fails without."""

import jax
import numpy as np
import pytest
from scipy import sparse, stats

from bilevelax.applications.newsvendor.censored import Pooled, demands, identified, kaplan_meier

pytest.importorskip("sklearn")


def law_of(weights, sales, sold_out):
    law, beyond = kaplan_meier(
        sparse.csr_matrix(np.atleast_2d(weights)), np.asarray(sales, float), np.asarray(sold_out)
    )
    return law.toarray(), beyond


def test_the_product_formula_by_hand():
    """Sales 1, 2+, 3, 3+, 5: S(1) = 4/5, S(3) = 4/5 * 2/3 = 8/15, S(5) = 0; with 5 cut off, 8/15 lie beyond."""
    lost = [False, True, False, True, False]
    law, beyond = law_of(np.full(5, 0.2), [1, 2, 3, 3, 5], lost)
    np.testing.assert_allclose(law[0], [1 / 5, 0, 4 / 15, 0, 8 / 15], atol=1e-12)
    assert beyond[0] == 0
    law, beyond = law_of(np.full(5, 0.2), [1, 2, 3, 3, 5], [*lost[:4], True])
    np.testing.assert_allclose(beyond, 8 / 15)
    np.testing.assert_allclose(law.sum(axis=1) + beyond, 1)


def test_weights_count_as_copies_and_lines_do_not_mix():
    """A weight of 2/5 is two equal days; without stock-outs the law is the weights themselves."""
    sales, lost = np.array([4.0, 1.0, 3.0, 2.0]), np.array([False, False, False, True])
    twice, _ = law_of([[0.2, 0.2, 0.4, 0.2], [0.25] * 4], sales, lost)
    copies, _ = law_of([0.2] * 5, [4, 1, 3, 3, 2], [False, False, False, False, True])
    np.testing.assert_allclose(twice[0], [copies[0, 0], copies[0, 1], copies[0, 2] + copies[0, 3], 0], atol=1e-12)
    np.testing.assert_allclose(twice[1], law_of([0.25] * 4, sales, lost)[0][0])
    W = np.array([[0.1, 0.2, 0.3, 0.4]])
    np.testing.assert_allclose(law_of(W, sales, np.zeros(4, bool))[0], W)


def test_efron_passing_weight_to_the_right_is_the_same_law():
    rng = np.random.default_rng(0)
    sales, lost = rng.permutation(30).astype(float), rng.random(30) < 0.4
    lost[np.argmax(sales)] = False
    w = rng.dirichlet(np.ones(30))
    moved = w.copy()
    for i in np.argsort(sales):  # from the left: each sold-out day gives what it has to all on its right
        if lost[i]:
            right = sales > sales[i]
            moved[right] *= 1 + moved[i] / moved[right].sum()
            moved[i] = 0.0
    np.testing.assert_allclose(law_of(w, sales, lost)[0][0], moved, atol=1e-12)


def shop(n, seed=0):
    """Demand N(100 + 20 x, 15); the stock does not know it."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    demand = 100 + 20 * x + 15 * rng.normal(size=n)
    stock = 100 + 20 * x + rng.uniform(-20, 40, n)
    return x[:, None], demand, np.minimum(demand, stock), demand >= stock


def test_quantiles_come_back_and_do_not_without():
    """Oracle: the 90 % quantile at x = 0 is 100 + 1.2816 * 15; sales alone are far below."""
    from bilevelax.sklearn.conditional import Forest

    X, _, sales, lost = shop(1500)
    assert 0.3 < lost.mean() < 0.4
    found = demands(Forest(trees=30, min_samples_leaf=30, max_features=None), X, sales[:, None], lost[:, None])
    assert (found[~lost, 0] == sales[~lost]).all() and (found[lost, 0] > sales[lost]).all()
    covered = lambda y: stats.norm.cdf((np.quantile(y - 20 * X[:, 0], 0.9) - 100) / 15)
    assert abs(covered(found[:, 0]) - 0.9) < 0.02
    assert covered(sales) < 0.83  # the control: sales taken for demand


def test_what_cannot_be_learnt_is_said():
    sales, lost = np.minimum(np.arange(100.0), 60), np.arange(100) >= 60
    assert Pooled.of(sales, lost).beyond == pytest.approx(0.4)
    assert "cannot be learnt and will be too small" in identified(sales, lost, 0.9, "demand")
    assert "covers 60% of the estimated demand, so an order for 50% can be learnt" in identified(sales, lost, 0.5, "d")


@pytest.mark.slow
def test_orders_from_capped_sales_reach_the_target_and_do_not_without():
    """True service by the known law, P(D <= order | x), on 400 new contexts; target 90 %."""
    from bilevelax.sklearn import RobustNewsvendor
    from bilevelax.sklearn.conditional import Forest

    X, demand, sales, lost = shop(1500)
    estimated = demands(Forest(), X, sales[:, None], lost[:, None])[:, 0]
    new = np.linspace(-0.95, 0.95, 400)[:, None]

    def service(y):
        rule = RobustNewsvendor(1, 9, penalty=np.inf, perturb="none", random_state=0).fit(X, y)
        return float(stats.norm.cdf((rule.predict(new) - 100 - 20 * new[:, 0]) / 15).mean())

    with jax.numpy_dtype_promotion("standard"):  # as scikit-learn's users have it
        known, found, capped = service(demand), service(estimated), service(sales)
    print(f"demand known {known:.3f}, estimated {found:.3f}, sales taken for demand {capped:.3f}")
    assert abs(found - 0.9) < 0.03 and capped < 0.82
