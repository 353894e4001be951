"""Which problems are so small that their programs are compiled at once instead of optimised."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

from bilevelax import (
    Checkpoint,
    Problem,
    antithetic_mlmc,
    dl_sgd,
    envelope,
    from_arrays,
    minibatch,
    minimize,
    rt_mlmc,
    saa,
)
from bilevelax.problems.little import how_to_compile, little_work
from bilevelax.run import run


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


@pytest.mark.parametrize(
    ("d_x", "T", "estimator", "how"),
    [
        (3, 300, minibatch(saa(8), 32), "at once"),
        (3, 300, antithetic_mlmc(8), "at once"),
        (3, 1001, saa(8), "small"),
        (3, None, saa(8), "small"),
        (3, 1000, minibatch(saa(8), 1000), "small"),
        (3, 300, minibatch(rt_mlmc(8), 32), "small"),
        (3, 300, dl_sgd(8), "small"),
        (10_000, 300, saa(8), "optimised"),
        (10_000, 300, rt_mlmc(8), "optimised"),
    ],
)
def test_a_program_is_optimised_where_that_pays(d_x, T, estimator, how):
    assert how_to_compile(problem_of(3), estimator, jnp.zeros(d_x), T) == how


@pytest.mark.parametrize(
    ("checkpoint", "T", "how"), [(False, 5, "at once"), (True, 5, "small"), (False, 1001, "small")]
)
def test_short_runs_that_cannot_go_on_are_compiled_at_once(checkpoint, T, how, key, tmp_path, monkeypatch):
    """What was saved may go on with another T, to the bits of a run that never stopped."""
    taken = set()
    for each, chunk in run.CHUNKS.items():
        monkeypatch.setitem(run.CHUNKS, each, lambda *a, _=(each, chunk), **k: taken.add(_[0]) or _[1](*a, **k))
    where = {"checkpoint": Checkpoint(tmp_path / "saved")} if checkpoint else {}
    minimize(problem_of(2), saa(2), optax.sgd(0.1), jnp.zeros(2), key=key, T=T, every=T, progress=False, **where)
    assert taken == {how}


@pytest.mark.parametrize(("n", "d_x", "how"), [("all", 100, "small"), ("all", 2**15, "optimised"), (2, 3, "at once")])
def test_light_estimators_compile_small_programs_for_small_rules(n, d_x, how):
    """Gradient steps on all outcomes: by the size of x, whatever y is, and never unoptimised; draws as others."""
    assert how_to_compile(problem_of(3), envelope(4, 1, n=n), jnp.zeros(d_x), 20) == how
    assert how_to_compile(problem_of(500), envelope(4, 1, n="all"), jnp.zeros(100), 20) == "small"
