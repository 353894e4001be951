"""Stored contexts and outcomes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.testing import check_problem


def test_from_arrays_samples_only_what_is_stored(key):
    contexts = {"z": jnp.arange(3.0)}
    outcomes = [np.array([10.0, 11.0]), np.array([20.0]), np.array([30.0, 31.0, 32.0])]
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: y * x + xi["z"],
        g=lambda x, y, eta, xi: (y - eta) ** 2 / 2,
        contexts=contexts,
        outcomes=outcomes,
        init_y=lambda x, xi: xi["z"],
        mu_g=1.0,
        L_g1=1.0,
    )
    check_problem(problem, jnp.asarray(0.0), key=key)
    xi = jax.vmap(problem.context)(random.split(key, 400))
    eta = jax.vmap(problem.conditional)(random.split(random.fold_in(key, 1), 400), xi)
    seen = {(int(row), float(value)) for row, value in zip(xi.row, eta, strict=True)}
    assert seen == {(i, float(v)) for i, values in enumerate(outcomes) for v in values}
    np.testing.assert_array_equal(xi.value["z"], contexts["z"][xi.row])
    # n = 6000 draws of outcome (30, 31, 32): standard error 0.0105
    y = bx.respond(problem, jnp.asarray(0.0), problem.nth_context(2), key=key, n=6000)
    assert abs(float(y) - 31.0) < 0.06
