"""The demand design: both ways to a conditional mean against normal equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications import instrumental_variables as iv


def gradient(problem, x):
    """Exact: all contexts, all outcomes."""
    batch = bx.minibatch(bx.saa("all"), problem.n_contexts, contexts="spread")
    return jax.jit(batch.estimate)(random.key(0), problem, x, batch.init(problem, x))[0].grad


def test_the_gradient_of_joint_samples_is_that_of_a_projection():
    app = iv.make(n=40, functions=5, instruments=4, alpha=0.1, conditional="joint")
    rows, phi = app.problem.data.inner.data, np.asarray(app.problem.data.phi)
    (y, psi), x = rows.outcomes, np.linspace(-1, 1, 5)
    u = phi @ np.linalg.lstsq(phi, y - psi @ x, rcond=None)[0]
    np.testing.assert_allclose(gradient(app.problem, jnp.asarray(x)), -psi.T @ u / 40 + 0.1 * x, rtol=1e-8)


def test_the_gradient_of_neighbours_is_that_of_their_means():
    app = iv.make(n=12, functions=3, conditional="neighbours", neighbours=4, alpha=0.1)
    y, psi = (np.asarray(a) for a in app.problem.data.outcomes)
    x = np.array([0.3, -0.2, 0.5])
    u, moved = (y - psi @ x).mean(axis=1), psi.mean(axis=1)
    np.testing.assert_allclose(gradient(app.problem, jnp.asarray(x)), -moved.T @ u / 12 + 0.1 * x, rtol=1e-8)
    half_blind = -psi[:, 0].T @ u / 12 + 0.1 * x  # control: one draw in place of the mean
    assert np.linalg.norm(half_blind - (-moved.T @ u / 12 + 0.1 * x)) > 1e-2


def test_neighbours_are_the_nearest_others():
    rows = iv.demand_design(9, 0.5, np.random.default_rng(1))
    problem = iv.nearest(iv.linear, rows, 1.0, 2)
    Z = rows.z / rows.z.std(axis=0)
    far = np.linalg.norm(Z[:, None] - Z[None], axis=2) + np.diag(np.full(9, np.inf))
    np.testing.assert_allclose(problem.data.outcomes[0], rows.y[np.argsort(far, axis=1)[:, :2]], rtol=1e-6)


def test_the_shock_is_behind_price_and_sales():
    rows = iv.demand_design(20_000, 0.9, np.random.default_rng(0))
    c, t, _ = rows.z.T
    v, e = rows.T[:, 0] - 25 - (c + 3) * iv.season(t), rows.y - iv.sales(rows.T)
    assert np.corrcoef(v, e)[0, 1] == pytest.approx(0.9, abs=0.01) and e.std() == pytest.approx(1.0, abs=0.02)
    assert abs(np.corrcoef(c, e)[0, 1]) < 0.03 and iv.grid().shape == (2800, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(rho=1.0), r"`rho` of instrumental_variables must lie in \[0, 1\). Got 1.0"),
        (dict(n=5, conditional="neighbours", neighbours=5), "`neighbours` of instrumental_variables must be below n"),
        (dict(conditional="forest"), "`conditional` of instrumental_variables must be one of 'joint', 'neighbours'"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        iv.make(**change)
