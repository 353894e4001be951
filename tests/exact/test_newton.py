"""Damped Newton."""

import jax.numpy as jnp
import numpy as np

from bilevelax.exact.linear import direct
from bilevelax.exact.newton import newton


def test_damped_newton_where_newton_diverges():
    """A smoothed absolute value: the full Newton step from 3 lands beyond -90, and the next one farther still."""
    value_and_grad = lambda y: (jnp.sum(jnp.log(jnp.cosh(y))), jnp.tanh(y))
    hessian = lambda y: lambda r: r / jnp.cosh(y) ** 2
    assert 3.0 - np.tanh(3.0) * np.cosh(3.0) ** 2 < -90
    found = newton(value_and_grad, hessian, jnp.asarray([3.0]), iterations=50, linear=direct(), tol=1e-12)
    np.testing.assert_allclose(found.y, 0, atol=1e-11)
