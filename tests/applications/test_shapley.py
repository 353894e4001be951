"""Parts of an order: closed forms for a sum and a product, and that they add up."""

import numpy as np
import pytest

from bilevelax.applications.newsvendor.shapley import shapley

RNG = np.random.default_rng(0)


def test_of_a_sum_each_column_gets_its_own():
    """pi = a . x: phi_g = sum of a_i (x_i - mean z_i) over the columns of g."""
    a, x, past = RNG.normal(size=(5, 2)), RNG.normal(size=5), RNG.normal(size=(7, 5))
    groups = [[0], [1, 3], [2, 4]]
    parts = shapley(lambda X: X @ a, x, past, groups)
    own = a * (x - past.mean(axis=0))[:, None]
    np.testing.assert_allclose(parts, [own[columns].sum(axis=0) for columns in groups], atol=1e-12)


def test_of_a_product_both_get_half():
    """pi = x1 x2 against z = 0: v is x1 x2 for both, else 0."""
    parts = shapley(lambda X: X[:, :1] * X[:, 1:2], np.array([3.0, 4.0, 9.0]), np.zeros((1, 3)), [[0], [1], [2]])
    np.testing.assert_allclose(parts[:, 0], [6, 6, 0])


@pytest.mark.parametrize("columns", [4, 13])
def test_parts_add_up_to_the_order(columns):
    x, past = RNG.normal(size=columns), RNG.normal(size=(3, columns))
    rule = lambda X: np.tanh(X.sum(axis=1, keepdims=True)) + X[:, :1] ** 2
    parts = shapley(rule, x, past, [[i] for i in range(columns)])
    assert parts.sum() == pytest.approx(rule(x[None])[0, 0] - rule(past).mean())


def test_random_orders_come_near_the_exact_parts(monkeypatch):
    from bilevelax.applications.newsvendor import shapley as module

    x, past = RNG.normal(size=6), RNG.normal(size=(3, 6))
    rule = lambda X: np.maximum(X[:, :1] * X[:, 1:2], X[:, 2:3]) + X[:, 3:4]
    groups = [[i] for i in range(6)]
    exact = shapley(rule, x, past, groups)
    monkeypatch.setattr(module, "MOST", 0)
    np.testing.assert_allclose(shapley(rule, x, past, groups), exact, atol=0.25)
