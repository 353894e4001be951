"""Followers that mislead a solver: units, far starts, domains, no minimum. Each once gave a wrong number in silence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from followers import FOLLOWERS, ridge
from jax import random

import bilevelax as bx
from bilevelax.exact.linear import cg, direct, refined

KEY = random.key(0)


@pytest.mark.parametrize("name", FOLLOWERS)
def test_the_hypergradient_is_right_whatever_units_and_start(name):
    case = ridge(**FOLLOWERS[name])
    found = jax.jit(lambda: bx.saa("all").estimate(KEY, case.problem, case.x, ())[0])()
    np.testing.assert_allclose(float(found.grad[0]), case.grad, rtol=1e-3)
    assert float(found.aux["lower_error"]) < 1e-4 and float(found.aux["lower_unsolved"]) == 0


def alone(f, g, init):
    """A problem whose f and g see x and y only."""
    return bx.Problem(
        f=lambda x, y, eta, xi: f(x, y),
        g=lambda x, y, eta, xi: g(x, y),
        sample_context=lambda key, data: random.normal(key, (1,)),
        sample_conditional=lambda key, xi, data: random.normal(key, (1,)),
        init_y=lambda x, xi: jnp.asarray(init),
    )


def barrier():
    """g has a domain: the answer is x e^-5, and a full Newton step from 1 lands where the logarithm is not a number."""
    return alone(lambda x, y: jnp.sum((y - 1) ** 2), lambda x, y: jnp.exp(5.0) * y[0] - x[0] * jnp.log(y[0]), [1.0])


def test_steps_stay_where_g_is_finite():
    x = jnp.asarray([1.5])
    problem = barrier()
    y = bx.respond(problem, x, problem.context(KEY), key=KEY, n=4)
    np.testing.assert_allclose(y, 1.5 * np.exp(-5.0), rtol=1e-6)
    grad = jax.jit(lambda: bx.saa(2).estimate(KEY, problem, x, ())[0].grad)()
    np.testing.assert_allclose(grad, 2 * (y - 1) * np.exp(-5.0), rtol=1e-6)


NO_MINIMUM = {
    "concave": lambda y: -jnp.sum(y**2) / 2 + y[0],
    "linear": lambda y: jnp.sum(y),
    "saddle": lambda y: y[0] ** 2 - y[1] ** 2 + y[1],
    "unbounded": lambda y: jnp.sum(jnp.arctan(y)),
}


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize("name", NO_MINIMUM)
def test_a_follower_without_a_minimum_is_told(name, solver):
    g = lambda x, y: NO_MINIMUM[name](y) + 0.1 * jnp.sum(x * y)
    problem = alone(lambda x, y: jnp.sum((y - x) ** 2), g, [0.3, 0.3])
    linear = {"direct": direct(), "cg": cg(tol=1e-2)}[solver]
    estimator = bx.saa(2, bx.newton_solver(linear=linear))
    found = jax.jit(lambda: estimator.estimate(KEY, problem, jnp.ones(2), ())[0])()
    assert float(found.aux["lower_unsolved"]) == 1


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


def test_an_answer_at_zero_is_solved():
    """Nothing to be relative to: rounding ends the solve, and that is no failure."""
    rows = np.random.default_rng(0).normal(size=(1, 64, 3)).astype(np.float32)
    rows -= rows.mean(1, keepdims=True)
    problem = bx.from_arrays(
        lambda x, y, eta, xi: jnp.sum((y - x) ** 2),
        lambda x, y, eta, xi: jnp.sum((y - eta) ** 2),
        np.zeros((1, 1), np.float32),
        rows,
        init_y=lambda x, xi: jnp.full(3, 0.7, jnp.float32),
    )
    found = jax.jit(lambda: bx.saa("all").estimate(KEY, problem, jnp.ones(3, jnp.float32), ())[0])()
    assert float(found.aux["lower_unsolved"]) == 0 and float(found.aux["lower_grad_norm"]) < 1e-6
