"""Train and validation rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.problems.splits import coupled
from bilevelax.testing import check_problem


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 3), (4, 2), (5, 3), (1, 7), (8, 5)])
def test_every_row_has_its_weight(m, n):
    pairs, weights = coupled(np.asarray([m, 1]), np.asarray([n, 1]))
    assert weights.shape[1] <= m + n - 1
    for rows, size in ((pairs.train, m), (pairs.validation, n)):
        np.testing.assert_allclose(np.bincount(rows[0], weights[0], size), 1 / size, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(weights).sum(1), 1)


def ridge(rng, train=(6, 4), validation=(3, 5)):
    """The penalty exp(x) of a ridge regression in two contexts, and the same by linear algebra."""
    rows = lambda n: {"a": rng.normal(size=(n, 2)), "b": rng.normal(size=n)}
    parts = [[rows(n) for n in sizes] for sizes in (train, validation)]
    problem = bx.from_splits(
        f=lambda x, y, row, xi: (row["a"] @ y - row["b"]) ** 2 / 2,
        g=lambda x, y, row, xi: (row["a"] @ y - row["b"]) ** 2 / 2 + jnp.exp(x) * (y @ y) / 2,
        contexts=np.zeros(2),
        train=parts[0],
        validation=parts[1],
        init_y=lambda x, xi: jnp.zeros(2),
    )

    def F(x):
        costs = []
        for fit, paid in zip(*parts, strict=True):
            n = len(fit["b"])
            y = np.linalg.solve(fit["a"].T @ fit["a"] / n + np.exp(x) * np.eye(2), fit["a"].T @ fit["b"] / n)
            costs.append(np.mean((paid["a"] @ y - paid["b"]) ** 2) / 2)
        return np.mean(costs)

    return problem, F


def test_validation_cost_and_its_gradient_are_exact(key):
    problem, F = ridge(np.random.default_rng(0))
    x = jnp.asarray(-1.0)
    assert bx.evaluate(problem, x, key=key).mean == pytest.approx(F(-1.0), rel=1e-10)
    slope = (F(-1 + 1e-6) - F(-1 - 1e-6)) / 2e-6
    found = bx.certify(problem, x, key=key)
    assert found.low == found.high == pytest.approx(slope**2, rel=1e-6)


def test_draws_have_the_law_that_is_stored(key):
    problem, _ = ridge(np.random.default_rng(0))
    check_problem(problem, jnp.asarray(0.0), key=key)
    xi = problem.nth_context(0)
    drawn = jax.vmap(lambda key: problem.conditional(key, xi))(random.split(key, 4000))
    stacked, weights = problem.outcomes(xi)
    for part in ("train", "validation"):
        values, there = np.asarray(getattr(drawn, part)["b"]), np.asarray(getattr(stacked, part)["b"])
        for value in np.unique(there[np.asarray(weights) > 0]):
            share = np.asarray(weights)[there == value].sum()
            assert abs(np.mean(values == value) - share) < 5 * (share / 4000) ** 0.5
    with pytest.raises(ValueError, match="`validation` of from_splits must hold at least one outcome for each"):
        bx.from_splits(None, None, np.zeros(2), [np.ones(1)] * 2, [np.ones(1)], init_y=None)
