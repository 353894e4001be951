"""How many programs diagnostics compile: few the first time, none the second."""

import jax.numpy as jnp
import pytest
from compiled import nothing_compiled, programs
from diagnosed import SMALL, X
from jax import random

import bilevelax as bx


def noisy():
    """A new problem each time, so that nothing of it was compiled before."""
    return bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2) / 2,
        sample_context=lambda key, data: random.normal(key, (2,)),
        sample_conditional=lambda key, xi, data: random.normal(key, (2,)),
        init_y=lambda x, xi: jnp.zeros(2),
        mu_g=1.0,
        L_g1=1.0,
    )


SOLVED, MATRICES, HESSIANS, JUMPS, MEANS = "_solved", "_matrices", "_hessians", "_along_lines", "means"
RUNS = {
    "check": (
        lambda p, key: bx.check(p, X, key=key, **SMALL),
        ["_drawn_twice", SOLVED, MATRICES, HESSIANS, JUMPS, MEANS],
    ),
    "constants": (lambda p, key: bx.constants(p, X, key=key, contexts=4), [SOLVED, MATRICES]),
    "certify": (lambda p, key: bx.certify(p, X, key=key, n=64), [MEANS]),
}
OF_JAX = {"_cases", "_threefry_fold_in", "convert_element_type"}  # the compiler's test; keys made outside of programs


@pytest.mark.parametrize("name", RUNS)
def test_each_program_is_compiled_once_and_none_a_second_time(name, key):
    run, expected = RUNS[name]
    problem = noisy()
    nothing_compiled()
    again = random.key(1)
    with programs() as first:
        run(problem, key)
    assert [each for each in first if each not in OF_JAX] == expected
    assert first.count("_cases") <= 4 and len(first) - first.count("_cases") <= len(expected) + 2
    with programs() as second:
        run(problem, again)
    assert second == []


def test_the_parts_of_a_double_loop_are_one_program_more(key):
    problem, estimator, again = noisy(), bx.rt_mlmc(2), random.key(1)
    with programs() as first:
        bx.check(problem, X, key=key, estimator=estimator, **SMALL)
    own = ["_drawn_twice", SOLVED, MATRICES, HESSIANS, JUMPS, "_part_errors", MEANS]
    assert [each for each in first if each not in OF_JAX] == own
    with programs() as second:
        bx.check(problem, X, key=again, estimator=estimator, **SMALL)
    assert second == []


def test_the_count_can_see_a_program():
    with programs() as found:
        jnp.ones(7) * 3.25 + jnp.arange(7.0)
    assert found
