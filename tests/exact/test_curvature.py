"""The monitor of the follower's curvature."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from bilevelax import Problem, curvature
from bilevelax.exact.curvature import extreme_eigenvalues


def spectrum(values, seed=0):
    Q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))
    return jnp.asarray(Q @ np.diag(values) @ Q.T)


@pytest.mark.parametrize(
    "values",
    [np.linspace(-3.0, 5.0, 12), np.full(12, 2.0), np.r_[-0.5, np.full(11, 2.0)], np.r_[np.full(11, 1e-3), 1e3]],
    ids=["spread", "one value", "one negative", "ill-conditioned"],
)
def test_lanczos_is_exact_from_d_steps_on(values, key):
    found = extreme_eigenvalues(lambda v: spectrum(values) @ v, random.normal(key, (12,)), steps=30)
    np.testing.assert_allclose(found, [values.min(), values.max()], rtol=1e-9, atol=1e-9 * abs(values).max())


def test_few_steps_never_overstate(key):
    values = np.linspace(-1.0, 9.0, 40)
    low, high = extreme_eigenvalues(lambda v: spectrum(values) @ v, random.normal(key, (40,)), steps=8)
    assert -1.0 <= low < 0.0 and 8.0 < high <= 9.0


@pytest.fixture(scope="module")
def double_well():
    """g = (y^2 - 1)^2 / 4 + curved x y, whose Hessian 3 y^2 - 1 is negative at the start y = xi of small contexts."""
    contexts = jnp.array([[0.1, 2.0], [1.0, -2.0]])
    return Problem(
        f=lambda x, y, eta, xi: y["u"].sum(),
        g=lambda x, y, eta, xi: ((y["u"] ** 2 - 1) ** 2).sum() / 4 + eta * x @ y["u"],
        sample_context=lambda key, data: data[random.randint(key, (), 0, 2)],
        sample_conditional=lambda key, xi, data: random.normal(key),
        init_y=lambda x, xi: {"u": xi},
        data=contexts,
        n_contexts=2,
        context_at=lambda i, data: data[i],
    )


def test_negative_curvature_is_found_over_all_contexts(double_well, key):
    found = curvature(double_well, jnp.zeros(2), key=key, points=1)
    assert found == pytest.approx((3 * 0.1**2 - 1, 3 * 2.0**2 - 1), rel=1e-9)


def test_later_points_are_looked_at(double_well, key):
    """From y = 2, a step of 1/11 against the slope y^3 - y = 6: the curvature there is less than at the start."""
    only = Problem(**{**vars(double_well), "n_contexts": 1, "context_at": lambda i, data: jnp.array([2.0, 2.0])})
    assert curvature(only, jnp.zeros(2), key=key, points=1).smallest == pytest.approx(11.0)
    assert curvature(only, jnp.zeros(2), key=key, points=2).smallest == pytest.approx(3 * (2 - 6 / 11) ** 2 - 1)


@pytest.mark.parametrize("name", ["contexts", "samples", "steps", "points"])
def test_bad_arguments(name, double_well, key):
    with pytest.raises(ValueError, match=f"`{name}` of curvature must be an integer >= 1. Got 0"):
        curvature(double_well, jnp.zeros(2), key=key, **{name: 0})
