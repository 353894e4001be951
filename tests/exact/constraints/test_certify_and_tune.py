"""`certify` and `tune` on every kind of set, against gradients by finite differences of exact costs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_gradients import differences
from followers_on_sets import SETS, D, points, problem_on
from jax import random

import bilevelax as bx
from bilevelax.base.compiling import program
from bilevelax.core.estimate import Estimator
from bilevelax.exact.sample_average import newton_solver, of_stack

CONTEXTS = 0.5 * np.random.default_rng(2).normal(size=(4, D))
NOISE = 0.5
FAST = "box that moves"
every_set = pytest.mark.parametrize(
    "name", [FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SETS if name != FAST)]
)


@functools.cache
def case(name):
    """(problem of four contexts, stored outcomes of each; the same with draws of eta; x; grad F).

    eta enters g linearly and has mean zero, in both: y* is that of eta = 0, and so is the gradient.
    """
    drawn = problem_on(SETS[name](), noise=NOISE)
    outcomes = np.random.default_rng(3).normal(size=(4, 3, D))
    outcomes -= outcomes.mean(1, keepdims=True)
    stored = bx.from_arrays(
        drawn.f, drawn.g, CONTEXTS, outcomes, init_y=drawn.init_y, constraint=drawn.constraint, mu_g=drawn.mu_g
    ).replace(L_g1=drawn.L_g1)
    listed = jnp.asarray(CONTEXTS)
    drawn = drawn.replace(
        sample_context=lambda key, data: listed[random.randint(key, (), 0, 4)],
        context_at=lambda i, data: listed[i],
        n_contexts=4,
    )
    x = points()[0][0]
    return stored, drawn, x, np.asarray(program()(differences)(stored, x))


def blind(estimator):
    """The same estimator, told nothing of the set."""
    return Estimator(
        estimator.init,
        lambda key, problem, x, state: estimator.estimate(key, problem.replace(constraint=None), x, state),
        contexts=estimator.contexts,
    )


def test_a_solve_that_ends_at_rest_leaves_no_error():
    """One Newton step from y = 0 is infinite against y: `tune` took such followers for unsolved."""
    stored, _, x, _ = case(FAST)
    solve = lambda i: _answer(stored, x, stored.nth_context(i))
    found = program()(lambda: jax.vmap(solve)(jnp.arange(4)))()
    assert found.solved.all() and float(found.error.max()) < 1e-12 and int(found.iterations.min()) == 1


def _answer(problem, x, xi):
    etas, weights = problem.outcomes(xi)
    return newton_solver()(of_stack(problem, x, xi, etas, weights, 1), problem.start(x, xi))


@every_set
def test_certify_is_exact_where_all_is_stored(name):
    stored, _, x, grad = case(name)
    found = bx.certify(stored, x, key=random.key(0))
    assert found.low == found.estimate == found.high
    np.testing.assert_allclose(found.estimate, grad @ grad, rtol=1e-6)


@every_set
def test_an_interval_holds_the_gradient_on_the_set_and_not_one_that_ignores_it(name):
    _, drawn, x, grad = case(name)
    seen = bx.certify(drawn, x, key=random.key(1), n=512)
    assert seen.low <= grad @ grad <= seen.high and seen.high - seen.low < grad @ grad / 2, (seen, grad @ grad)
    ignored = bx.certify(drawn, x, key=random.key(1), n=512, estimator=blind(bx.saa(8)))
    assert not ignored.low <= grad @ grad <= ignored.high, (ignored, grad @ grad)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_tune_finds_out_an_estimator_that_ignores_the_set(name):
    _, drawn, x, _ = case(name)
    batch = bx.minibatch(bx.saa(16), 4, contexts="spread")
    among = {"on the set": batch, "told nothing of it": blind(batch)}
    tuned = bx.tune(drawn, x, key=random.key(2), budget_seconds=600, among=among)
    bias = {trial.name: trial.bias for trial in tuned.trials}
    assert tuned.choice == "on the set" and bias["told nothing of it"].decided(tuned.tol) is False, tuned
    assert bias["on the set"].decided(tuned.tol) is not False, tuned
