"""Warm starts: the same gradients for less work, from a table or a regression."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.exact.sample_average import newton_solver
from bilevelax.testing import check_estimator


@pytest.mark.parametrize("make", [lambda: bx.saa("all"), lambda: bx.antithetic_mlmc(4, 3, 0.1, factor=2)])
def test_a_table_changes_the_cost_only(make, logistic, key):
    """Gradients and levels are those of cold starts; from its own answers there is less left to do."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    warm = bx.warm_started(bx.minibatch(make(), 16))
    run = jax.jit(lambda table: warm.estimate(key, logistic, x, table))
    cold = warm.init(logistic, x)
    (first, table), (far, _), (broken, _) = run(cold), run(cold + 5.0), run(cold * jnp.nan)
    again, _ = run(table)
    for other in (far, again, broken):
        np.testing.assert_allclose(other.grad, first.grad, rtol=1e-7)
    assert int(again.cost.grad_g) < int(first.cost.grad_g) == int(broken.cost.grad_g) == int(far.cost.grad_g)
    assert jnp.any(table != cold) and jnp.isfinite(table).all()
    check_estimator(warm, logistic, x, key=key)


def test_a_warm_start_from_nothing_is_a_cold_one(logistic, key):
    """The guess enters at one place: with the guess at init_y, all but one gradient of each context is the same."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    same = dataclasses.replace(logistic, guess=lambda x, xi, data: logistic.start(x, xi))
    batch = bx.minibatch(bx.saa(8), 4)
    (cold, _), (warm, _) = (jax.jit(batch.estimate)(key, problem, x, ()) for problem in (logistic, same))
    np.testing.assert_allclose(warm.grad, cold.grad, rtol=1e-12)
    assert warm.cost == dataclasses.replace(cold.cost, grad_g=cold.cost.grad_g + 4 * 8)


def test_a_regression_learns_the_answers(quadratic, x, key):
    """y* of the quadratic is affine in xi: after one batch every new context starts at its answer."""
    batch = bx.minibatch(bx.saa(64), 32)
    warm = bx.warm_started(batch)
    run = jax.jit(lambda key, fit: warm.estimate(key, quadratic, x, fit))
    fit = warm.init(quadratic, x)
    _, fit = run(key, fit)
    xis = jax.vmap(quadratic.context)(random.split(random.key(5), 50))
    starts = jax.vmap(lambda xi: quadratic.start(x, xi))(xis)
    guesses = jax.vmap(bx.warm_regression().recall, in_axes=(None, 0, 0))(fit, xis, starts)
    answers = jax.vmap(lambda xi: bx.respond(quadratic, x, xi, key=key, n=64))(xis)
    assert jnp.linalg.norm(guesses - answers) < 0.2 * jnp.linalg.norm(starts - answers)
    other = random.key(9)
    cold = jax.jit(batch.estimate)(other, quadratic, x, ())[0]
    np.testing.assert_allclose(run(other, fit)[0].grad, cold.grad, rtol=1e-7)


def test_a_regression_forgets(quadratic, x, key):
    """Discounted normal equations: two visits with forgetting w give w A_1 + A_2."""
    memory = bx.warm_regression(features=lambda xi: xi, forgetting=0.5, ridge=1e-12)
    fit = memory.init(quadratic, x)
    xis, ys = random.normal(key, (2, 6, 2)), random.normal(random.fold_in(key, 1), (2, 6, 4))
    for one, y in zip(xis, ys, strict=True):
        fit = memory.learn(fit, one, y, jnp.zeros_like(y))
    weights = jnp.repeat(jnp.array([0.5, 1.0]), 6)[:, None] ** 0.5
    expected = jnp.linalg.lstsq(weights * xis.reshape(12, 2), weights * ys.reshape(12, 4))[0]
    np.testing.assert_allclose(fit.weights, expected, rtol=1e-8)


def test_a_table_needs_numbered_contexts(quadratic, x):
    with pytest.raises(ValueError, match="warm_table needs finitely many contexts"):
        bx.warm_started(bx.saa(4), bx.warm_table()).init(quadratic, x)


def test_a_warm_start_needs_solves(quadratic, x, key):
    warm = bx.warm_started(bx.maml(m=1, gamma=0.1))
    with pytest.raises(ValueError, match="must solve the lower level"):
        warm.estimate(key, quadratic, x, warm.init(quadratic, x))


@pytest.mark.parametrize("tol", [1e-12, 1e-2])
def test_a_warm_start_keeps_the_tolerance_of_the_solver(logistic, key, tol):
    """The error of y, wherever the solve starts; the last system formed shows it and is used again for the adjoint."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    estimate = jax.jit(lambda problem: bx.saa("all", newton_solver(tol=tol)).estimate(key, problem, x, ())[0])
    xi = logistic.context(random.split(key)[0])
    best = bx.respond(logistic, x, xi, key=key)
    near = dataclasses.replace(logistic, guess=lambda x, xi, data: best + 1e-4)
    cold, warm = estimate(logistic), estimate(near)
    for found in (cold, warm):
        assert float(found.aux["lower_error"]) <= tol
    assert int(warm.aux["newton_steps"]) == (1 if tol == 1e-2 else 3) < int(cold.aux["newton_steps"])


def test_a_bad_guess_is_not_taken(logistic, key):
    """It costs its gradient, and nothing else changes."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    far = dataclasses.replace(logistic, guess=lambda x, xi, data: jnp.full(3, 1e3))
    (cold, _), (warm, _) = (jax.jit(bx.saa(8).estimate)(key, problem, x, ()) for problem in (logistic, far))
    np.testing.assert_array_equal(warm.grad, cold.grad)
    assert warm.cost == dataclasses.replace(cold.cost, grad_g=cold.cost.grad_g + 8)


def test_a_regression_reads_sizes_not_numbers(quadratic, x, key):
    """Integers in a context are ids: ten million of them squared would drown the rest."""
    memory = bx.warm_regression()
    numbered = dataclasses.replace(
        quadratic,
        sample_context=lambda key, data: {"id": jnp.int32(10**7), "value": quadratic.context(key)},
        init_y=lambda x, xi: quadratic.init_y(x, xi["value"]),
    )
    assert memory.init(numbered, x).weights.shape == memory.init(quadratic, x).weights.shape == (6, 4)
    only = dataclasses.replace(
        quadratic, sample_context=lambda key, data: jnp.int32(3), init_y=lambda x, xi: jnp.zeros(4)
    )
    assert memory.init(only, x).weights.shape == (1, 4)


def test_a_regression_refuses_large_contexts(quadratic, x):
    images = dataclasses.replace(
        quadratic, sample_context=lambda key, data: jnp.zeros((64, 64)), init_y=lambda x, xi: jnp.zeros(4)
    )
    with pytest.raises(ValueError, match=r"at most 2048\. This context has 4097; give `features`"):
        bx.warm_regression().init(images, x)


def test_a_minibatch_of_warm_starts_is_the_warm_started_minibatch(quadratic, x, key):
    """In any order, with equal numbers and equal memory."""
    first = bx.minibatch(bx.warm_started(bx.saa(4), bx.warm_regression()), 3)
    second = bx.warm_started(bx.minibatch(bx.saa(4), 3), bx.warm_regression())
    found = []
    for estimator in (first, second):
        state = estimator.init(quadratic, x)
        run = jax.jit(lambda key, state, each=estimator: each.estimate(key, quadratic, x, state))
        found.append(run(random.fold_in(key, 1), run(key, state)[1]))
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert first.contexts(key).shape == second.contexts(key).shape == (3,)
