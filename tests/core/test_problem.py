"""Derivative products against dense derivatives, averages, and the contract of a problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

import bilevelax as bx
from bilevelax.testing import check_problem


def nonlinear(x, y, eta, xi):
    return jnp.sum(jnp.sin(x["a"])) * jnp.sum(y**3) + jnp.exp(eta @ y) * xi + x["b"] @ y[:2] + jnp.sum(y**4)


@pytest.fixture
def point():
    keys = random.split(random.key(3), 5)
    return {
        "x": {"a": random.normal(keys[0], (3,)), "b": random.normal(keys[1], (2,))},
        "y": random.normal(keys[2], (4,)),
        "eta": 0.3 * random.normal(keys[3], (4,)),
        "xi": random.normal(keys[4]),
    }


def test_products_equal_dense_derivatives(point):
    problem = bx.Problem(
        f=nonlinear,
        g=nonlinear,
        sample_context=lambda key, data: point["xi"],
        sample_conditional=lambda key, xi, data: point["eta"],
        init_y=lambda x, xi: point["y"],
    )

    @jax.jit
    def both_ways(point, r):
        flat_x, unravel = ravel_pytree(point["x"])
        g = lambda xf, y: nonlinear(unravel(xf), y, point["eta"], point["xi"])
        hess = jax.hessian(g, argnums=1)(flat_x, point["y"])
        cross = jax.jacobian(jax.grad(g, argnums=0), argnums=1)(flat_x, point["y"])  # d_x by d_y
        slope_x, slope_y = jax.grad(g, argnums=(0, 1))(flat_x, point["y"])
        grad_x, grad_y = problem.grad_f(**point)
        cross_g = ravel_pytree(problem.cross_g(**point, r=r))[0]
        products = problem.hess_g(**point, r=r), cross_g, problem.grad_g(**point), ravel_pytree(grad_x)[0], grad_y
        return products, (hess @ r, cross @ r, slope_y, slope_x, slope_y)

    for found, wanted in zip(*both_ways(point, jnp.arange(1.0, 5.0)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_averaged_is_the_mean_over_its_own_draws(quadratic, x, key):
    xi, y = quadratic.context(key), jnp.arange(4.0)
    average = quadratic.averaged(5)
    etas = [quadratic.conditional(random.fold_in(key, j), xi) for j in range(5)]
    expected = sum(quadratic.grad_g(x, y, eta, xi) for eta in etas) / 5
    np.testing.assert_allclose(average.grad_g(x, y, average.conditional(key, xi), xi), expected, rtol=1e-12)
    assert quadratic.averaged(1) is quadratic


def test_contract_of_the_test_problems(quadratic, softmax, x, key):
    check_problem(quadratic, x, key=key)
    check_problem(*softmax, key=key)


def test_check_problem_sees_wrong_constants(quadratic, x, key):
    import dataclasses

    with pytest.raises(AssertionError, match="below mu_g = 3"):
        check_problem(dataclasses.replace(quadratic, mu_g=3.0), x, key=key)
    with pytest.raises(AssertionError, match=r"above L_g1 = 2\."):
        check_problem(dataclasses.replace(quadratic, mu_g=None, L_g1=2.0), x, key=key)
