"""Three real problems for `solve`: penalties of a ridge regression, meta-learning, a robust newsvendor."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.applications import Application, meta_learning, wdro_si

FOLDS = 10


def ridge_penalties() -> Application:
    """One penalty for each feature of scikit-learn's diabetes data, by ten-fold cross-validation.

    A context is a fold, its only outcome the two parts of the rows; x holds the logarithms of the penalties.
    """
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    order, size = np.random.default_rng(0).permutation(len(y)), len(y) // FOLDS
    order = order[: size * FOLDS]
    parts = [
        ((X[train], y[train]), (X[test], y[test]))
        for test, train in ((order[k::FOLDS], np.setdiff1d(order, order[k::FOLDS])) for k in range(FOLDS))
    ]
    data = tuple(
        tuple(jnp.asarray(np.stack([part[i][j] for part in parts]), float) for j in range(2)) for i in range(2)
    )
    fold = lambda i, data: tuple(tuple(a[i] for a in part) for part in data)
    error = lambda y, rows: jnp.mean((rows[0] @ y - rows[1]) ** 2) / 2
    problem = bx.Problem(
        f=lambda x, y, eta, xi: error(y, eta[1]),
        g=lambda x, y, eta, xi: error(y, eta[0]) + jnp.sum(jnp.exp(x) * y**2) / 2,
        sample_context=lambda key, data: random.randint(key, (), 0, FOLDS),
        sample_conditional=lambda key, xi, data: fold(xi, data),
        init_y=lambda x, xi: jnp.zeros_like(x),
        data=data,
        n_contexts=FOLDS,
        context_at=lambda i, data: jnp.asarray(i),
        support=lambda xi, data: (one_row(fold(xi, data)), jnp.ones(1)),
    )

    def metrics(x: Any) -> dict[str, float]:
        costs = []
        for (A, a), (B, b) in parts:
            y = np.linalg.solve(A.T @ A / len(a) + np.diag(np.exp(np.asarray(x, float))), A.T @ a / len(a))
            costs.append(np.mean((B @ y - b) ** 2) / 2)
        return {"cross-validation error": float(np.mean(costs))}

    return Application(problem, jnp.zeros(X.shape[1]), metrics)


def one_row(eta: Any) -> Any:
    """A stack of one outcome."""
    return tuple(tuple(a[None] for a in part) for part in eta)


def norm_ten() -> Application:
    """The paper's meta-learning problem with features of length 10."""
    return meta_learning.make(d=64, images=50, batch=1, lam=2.0, norm=10.0)


def newsvendor_rule() -> Application:
    """An affine order rule, robust against an adversary that moves contexts: 50 contexts of 100 demands."""
    return wdro_si.make(lam=50.0, rule="affine", d=10, scale=1.0, test_points=20_000)
