"""Rows of `check` that must not blame what is right."""

from jax import random

from bilevelax.diagnostics.samplers import sampler_rows
from bilevelax.testing.adversarial.samplers import stored

KEY = random.key(0)


def test_a_right_sampler_is_not_blamed():
    """200 keys: each test's rate is 1e-5."""
    problem = stored()
    assert all(row.ok for i in range(200) for row in sampler_rows(problem, random.fold_in(KEY, i)))
