"""Danskin's gradient: exact on a min-max problem in closed form, biased where there is an implicit term."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.testing import assert_mean, assert_slope, check_estimator

B = jnp.array([[1.0, -0.5, 0.2], [0.3, 0.8, -1.0]])
CURVATURE = jnp.array([0.5, 2.0])  # of g in y, the constants mu_g and L_g1
X = jnp.array([0.3, -0.7, 0.5])


def payoff(x, y, eta, xi):
    """x'x/2 + y'(Bx + xi + eta) - y'Cy/2, of which the follower takes the largest over y."""
    return x @ x / 2 + y @ (B @ x + xi + eta) - CURVATURE @ y**2 / 2


def game(f=payoff, g=lambda *args: -3 * payoff(*args), mu_g=3 * 0.5, L_g1=3 * 2.0):
    contexts, outcomes = random.normal(random.key(1), (5, 2)), random.normal(random.key(2), (5, 4, 2))
    return bx.from_arrays(f, g, contexts, outcomes, init_y=lambda x, xi: jnp.ones(2), mu_g=mu_g, L_g1=L_g1)


def gradient(x, xi, mean_eta):
    """grad F of one context: x + B' C^-1 (Bx + xi + E eta)."""
    return x + B.T @ ((B @ x + xi + mean_eta) / CURVATURE)


def exact_at(problem, x, xi):
    return gradient(x, xi.value, problem.data.outcomes[xi.row].mean(0))


def estimate(estimator, key, problem):
    return jax.jit(lambda key: estimator.estimate(key, problem, X, ())[0])(key)


def test_exact_on_a_min_max_problem(key):
    """The mean over the contexts that it says it draws, of gradients in closed form."""
    problem, estimator = game(), bx.envelope(3, steps=80, n="all")
    found = estimate(estimator, key, problem)
    xi = jax.vmap(problem.context)(estimator.contexts(key))
    np.testing.assert_allclose(found.grad, jax.vmap(lambda xi: exact_at(problem, X, xi))(xi).mean(0), rtol=1e-12)
    assert found.cost == bx.Cost(xi=3, eta=12, grad_f=12, grad_g=80 * 12)
    assert found.visits[0].row.tolist() == xi.row.tolist() and found.visits[1].shape == (3, 2)


def test_a_minibatch_of_it_is_unbiased_on_this_problem(key):
    """The gradient is linear in the outcomes, so n draws of them leave its mean as it is."""
    problem = game()
    draw = jax.jit(
        jax.vmap(lambda key: bx.minibatch(bx.envelope(steps=40, n=2), 4).estimate(key, problem, X, ())[0].grad)
    )
    every = jax.vmap(lambda i: exact_at(problem, X, problem.nth_context(i)))(jnp.arange(5, dtype=jnp.int32))
    assert_mean(draw(random.split(key, 4000)), every.mean(0), power=0.2)


def test_steps_converge_at_the_rate_of_gradient_descent(key):
    """Each step of 2 / (mu + L) leaves (L - mu) / (L + mu) = 3/5 of the error, of either sign."""
    problem, steps = game(), range(4, 20, 4)
    wanted = estimate(bx.envelope(steps=200, n="all"), key, problem).grad
    off = [jnp.linalg.norm(estimate(bx.envelope(steps=n, n="all"), key, problem).grad - wanted) for n in steps]
    assert_slope(list(steps), np.array(off), np.log2(3 / 5), tol=1e-6)


def test_curvature_one_needs_no_constants_and_one_step(key):
    """Steps of 1, 2/3, 2/4, ...: the first is Newton's where the Hessian is I; a given size is kept to."""
    bowl = lambda x, y, eta, xi: payoff(x, y, eta, xi) + CURVATURE @ y**2 / 2 - y @ y / 2
    problem = game(bowl, lambda *args: -bowl(*args), None, None)
    xi = problem.context(bx.envelope().contexts(key)[0])
    wanted = X + B.T @ (B @ X + xi.value + problem.data.outcomes[xi.row].mean(0))
    np.testing.assert_allclose(estimate(bx.envelope(steps=1, n="all"), key, problem).grad, wanted, rtol=1e-12)
    half = estimate(bx.envelope(steps=1, n="all", step_size=0.5), key, problem).grad
    np.testing.assert_allclose(half, X + B.T @ (0.5 * (wanted_y(problem, xi) + 1)), rtol=1e-12)


def wanted_y(problem, xi):
    return B @ X + xi.value + problem.data.outcomes[xi.row].mean(0)


def test_biased_where_the_leader_is_no_adversary(key):
    """f = |y - 1|^2 / 2 reads x through y* alone: grad_1 f is zero, and so is this estimate; the gradient is not."""
    problem = game(f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2) / 2)
    found = estimate(bx.envelope(steps=80, n="all"), key, problem)
    assert not jnp.any(found.grad)
    exact = estimate(bx.saa("all"), key, problem)
    assert float(jnp.linalg.norm(exact.grad)) > 0.1


def test_single_precision_and_the_contract(key):
    problem = jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.float64 else a, game())
    fixed = lambda loss: lambda x, y, eta, xi: loss(x, y, eta, xi).astype(jnp.float32)
    problem = dataclasses.replace(problem, f=fixed(problem.f), g=fixed(problem.g))
    with jax.numpy_dtype_promotion("standard"):
        check_estimator(bx.envelope(2, n="all"), problem, X.astype(jnp.float32), key=key)
    check_estimator(bx.envelope(2), game(), X, key=key)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(batch=0), "`batch` of envelope must be an integer >= 1. Got 0"),
        (dict(steps=-1), "`steps` of envelope must be an integer >= 0. Got -1"),
        (dict(n="some"), "`n` of envelope must be an integer >= 1, or 'all' for every outcome. Got 'some'"),
        (dict(step_size=0.0), "`step_size` of envelope must be a positive number"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        bx.envelope(**settings)


def test_every_outcome_needs_a_support(quadratic, x, key):
    with pytest.raises(ValueError, match="This problem has no finite set of outcomes"):
        bx.envelope(n="all").estimate(key, quadratic, x, ())


def test_steps_may_be_told_by_the_data(key):
    """As many as the problem's data say: the same gradient and the same count as with that number."""
    problem = game()
    for n in (0, 3):
        told = bx.envelope(2, steps=lambda problem, n=n: jnp.asarray(n), n="all")
        one, other = (estimate(each, key, problem) for each in (told, bx.envelope(2, steps=n, n="all")))
        np.testing.assert_allclose(one.grad, other.grad, rtol=1e-12)
        assert int(one.cost.grad_g) == int(other.cost.grad_g) == n * int(one.cost.grad_f)
