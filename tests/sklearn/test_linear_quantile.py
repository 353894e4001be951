"""The dual program of linear quantile regression against scikit-learn's, which knows nothing of it."""

import time

import numpy as np
import pytest
from sklearn.linear_model import QuantileRegressor

from bilevelax.sklearn import LinearQuantile
from bilevelax.sklearn._linear_quantile import MANY, LongQuantileRegressor, prices


def rows(n, d=12, typo=None):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d))
    X[:, 0] = X[:, 1] > 0  # a category
    y = 50 + X @ rng.normal(0, 5, d) + rng.gamma(2, 5, n)
    y[7] = y[7] if typo is None else typo
    return X, y


def objective(line, X, y, level, alpha):
    left = y - line[0] - X @ line[1:]
    return np.mean(np.maximum(level * left, (level - 1) * left)) + alpha * np.abs(line[1:]).sum()


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("typo", [None, 1e9])
def test_both_programs_have_one_minimum(level, alpha, typo):
    X, y = rows(307, typo=typo)  # no whole number at these levels, or many lines are as good
    theirs = QuantileRegressor(quantile=level, alpha=alpha).fit(X, y)
    wanted = np.concatenate([[theirs.intercept_], theirs.coef_])
    found = prices(X, y, level, alpha)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert objective(found, X, y, level, alpha) == pytest.approx(objective(wanted, X, y, level, alpha), rel=1e-9)


def test_many_rows_take_a_part_of_the_time():
    X, y = rows(MANY + 500, 30)
    seconds, orders = [], []
    for kind in (QuantileRegressor, LongQuantileRegressor):
        started = time.process_time()
        orders.append(kind(quantile=0.9, alpha=1e-3).fit(X, y).predict(X))
        seconds.append(time.process_time() - started)
    np.testing.assert_allclose(orders[1], orders[0], atol=1e-6)
    assert seconds[1] < seconds[0] / 2
    order = LinearQuantile(1, 9).fit(X, y).predict(X)
    assert np.mean(y <= order) == pytest.approx(0.9, abs=0.01)
