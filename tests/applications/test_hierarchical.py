"""Centres of groups and adapted classifiers against normal equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications import hierarchical as h

LAM, KAPPA, NORM = 0.3, 0.7, 2.0


@pytest.fixture(scope="module")
def drawn():
    """(problem with one stored group, x, its tasks)."""
    app = h.make(groups=3, characters=4, drawings=4, d=3, dim=2, shots=2, lam=LAM, kappa=KAPPA, norm=NORM, tasks=2)
    etas = jax.vmap(lambda key: app.problem.conditional(key, jnp.asarray(0, jnp.int32)))(random.split(random.key(1), 5))
    x = {"map": app.x1["map"] + 0.1, "centre": jnp.array([0.3, -0.2, 0.1])}
    stacked = jax.tree.map(lambda a: a[None], etas)
    problem = bx.from_arrays(app.problem.f, app.problem.g, np.zeros(1), stacked, init_y=h.start, mu_g=LAM, L_g1=6.0)
    return problem, x, etas


def rows_of(x, a):
    z = np.asarray(a) @ np.asarray(x["map"])
    return np.column_stack([NORM * z / np.linalg.norm(z, axis=1, keepdims=True), np.ones(len(z))])


def ridge(x, y, task, i):
    """argmin |b - A w|^2 + kappa |w - y|^2, by the normal equations in w."""
    A, b = rows_of(x, task.A[i]), np.asarray(task.b[i])
    return np.linalg.solve(A.T @ A + KAPPA * np.eye(3), A.T @ b + KAPPA * y)


def test_a_task_adapts_by_ridge_towards_its_centre(drawn):
    _, x, etas = drawn
    y = np.array([0.5, -1.0, 0.2])
    task = jax.tree.map(lambda a: a[0], etas.train)
    adapted = jax.jit(lambda kappa: h.adapted(x, jnp.asarray(y), task, kappa, NORM))
    np.testing.assert_allclose(adapted(KAPPA), ridge(x, y, etas.train, 0), rtol=1e-8)
    away = np.linalg.norm(adapted(1e9) - y)
    assert away < 1e-6 < np.linalg.norm(ridge(x, y, etas.train, 0) - y)


def test_a_groups_centre_is_that_of_normal_equations(drawn):
    """w is affine in y, so the lower level is least squares; f at it is the mean error of the test tasks."""
    problem, x, etas = drawn
    H, r = LAM * np.eye(3), LAM * np.asarray(x["centre"])
    for i in range(5):
        w0 = ridge(x, np.zeros(3), etas.train, i)
        M = np.stack([ridge(x, e, etas.train, i) - w0 for e in np.eye(3)], axis=1)
        Q, answer = rows_of(x, etas.train.query[i]), np.asarray(etas.train.answer[i])
        H, r = H + M.T @ Q.T @ Q @ M / len(Q) / 5, r + M.T @ Q.T @ (answer - Q @ w0) / len(Q) / 5
    y = np.linalg.solve(H, r)
    found = bx.respond(problem, x, problem.nth_context(0), key=random.key(0))
    np.testing.assert_allclose(found, y, atol=1e-7)
    assert np.linalg.norm(np.asarray(x["centre"]) - y) > 1e-2  # control: one centre is not it
    errors = [
        np.mean((etas.test.answer[i] - rows_of(x, etas.test.query[i]) @ ridge(x, y, etas.test, i)) ** 2) / 2
        for i in range(5)
    ]
    assert bx.evaluate(problem, x, key=random.key(0)).mean == pytest.approx(np.mean(errors), rel=1e-6)


def test_levels_see_different_characters():
    data = h.groups_of([np.arange(4.0)[:, None, None] + 100 + np.zeros((4, 4, 1)), np.zeros((2, 4, 1))])
    pair = h.sampler(2)(random.key(0), jnp.asarray(0, jnp.int32), data)
    train, test = (np.asarray(part.A)[:2, 0] for part in pair)
    assert set(train) <= {100.0, 101.0} and set(test) <= {102.0, 103.0}


def test_refusals():
    with pytest.raises(ValueError, match="`shots` of hierarchical must be at most half of 8 drawings"):
        h.make(shots=5)
    with pytest.raises(ValueError, match="`lam` of hierarchical must be a positive number"):
        h.make(lam=0.0)
