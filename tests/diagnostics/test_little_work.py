"""Which problems are so small that their programs are compiled at once instead of optimised."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from bilevelax import Problem, from_arrays
from bilevelax.diagnostics.host import little_work


def problem_of(d_y, d_eta=2):
    return Problem(
        f=lambda x, y, eta, xi: jnp.sum(y**2),
        g=lambda x, y, eta, xi: jnp.sum((y - x[0] - jnp.mean(eta)) ** 2),
        sample_context=lambda key, data: random.normal(key),
        sample_conditional=lambda key, xi, data: random.normal(key, (d_eta,)),
        init_y=lambda x, xi: jnp.zeros(d_y),
    )


@pytest.mark.parametrize(
    ("problem", "d_x", "little"),
    [
        (problem_of(3), 3, True),
        (problem_of(100), 3, False),
        (problem_of(3), 10_000, False),
        (problem_of(3, d_eta=10_000), 3, False),
    ],
)
def test_all_that_a_solve_handles_counts(problem, d_x, little, key):
    assert little_work(key, problem, jnp.zeros(d_x)) is little


@pytest.mark.parametrize(("outcomes", "little"), [(8, True), (200_000, False)])
def test_stored_outcomes_count_by_their_number(outcomes, little, key):
    problem = problem_of(3)
    stored = from_arrays(problem.f, problem.g, np.zeros(2), [np.zeros((outcomes, 2))] * 2, init_y=problem.init_y)
    assert little_work(key, stored, jnp.zeros(3)) is little
