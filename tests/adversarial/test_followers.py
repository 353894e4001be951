"""Linear solvers that do not mind the units of y; the followers themselves are in the table."""

import jax.numpy as jnp
import numpy as np
import pytest

from bilevelax.exact.linear import cg, direct, refined


@pytest.mark.parametrize("linear", [direct(), cg(), cg(jacobi=True)], ids=["direct", "cg", "jacobi"])
def test_linear_solvers_do_not_mind_units(linear):
    """A matrix of condition 1e9 in float32 whose coordinates differ in unit only."""
    root = np.random.default_rng(0).normal(size=(12, 40))
    units = np.ones(12)
    units[0] = 3e4 if linear.keeps(12) else 3e2
    H = (root @ root.T / 40) * np.outer(units, units)
    b = units * np.random.default_rng(1).normal(size=12)
    exact = np.linalg.solve(H, b)
    found, _ = refined(linear)(lambda r: jnp.asarray(H, jnp.float32) @ r, jnp.asarray(b, jnp.float32))
    error = np.linalg.norm((np.asarray(found) - exact) * units) / np.linalg.norm(exact * units)
    assert error < 2e-3
