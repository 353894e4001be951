"""Rows of `check` that must not blame what is right."""

import jax.numpy as jnp
from jax import random

from bilevelax.diagnostics.samplers import sampler_rows
from bilevelax.testing.adversarial.samplers import stored

KEY, X = random.key(0), jnp.ones(2)


def test_a_right_sampler_is_not_blamed():
    """200 keys: each test's rate is 1e-5."""
    problem = stored()
    assert all(row.ok for i in range(200) for row in sampler_rows(problem, X, random.fold_in(KEY, i)))
