"""Derivative products against dense derivatives; special cases; stored contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
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
    r = jnp.arange(1.0, 5.0)
    flat_x, unravel = ravel_pytree(point["x"])
    g = lambda xf, y: nonlinear(unravel(xf), y, point["eta"], point["xi"])
    hess = jax.hessian(g, argnums=1)(flat_x, point["y"])
    cross = jax.jacobian(jax.grad(g, argnums=0), argnums=1)(flat_x, point["y"])  # d_x by d_y
    np.testing.assert_allclose(problem.hess_g(**point, r=r), hess @ r, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(problem.cross_g(**point, r=r))[0], cross @ r, rtol=1e-12)
    np.testing.assert_allclose(problem.grad_g(**point), jax.grad(g, argnums=1)(flat_x, point["y"]), rtol=1e-12)
    grad_x, grad_y = problem.grad_f(**point)
    np.testing.assert_allclose(ravel_pytree(grad_x)[0], jax.grad(g)(flat_x, point["y"]), rtol=1e-12)
    np.testing.assert_allclose(grad_y, problem.grad_g(**point), rtol=1e-12)


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


def test_stochastic_bilevel_is_context_free(key):
    """y* = x + E eta = x + 1; f = |y - xi|^2/2 with E xi = 3, so x* = 2."""
    problem = bx.stochastic_bilevel(
        f=lambda x, y, xi: jnp.sum((y - xi) ** 2) / 2,
        g=lambda x, y, eta: jnp.sum((y - x - eta) ** 2) / 2,
        sample_upper=lambda key, data: 3.0 + 0.1 * random.normal(key),
        sample_lower=lambda key, data: 1.0 + 0.1 * random.normal(key),
        init_y=lambda x: x,
        mu_g=1.0,
        L_g1=1.0,
    )
    schedule = optax.linear_schedule(0.5, 0.0, 400)
    estimator = bx.rt_mlmc(4, lower=bx.averaged_step(), inverse=bx.neumann(1, scale=1.0))  # exact for Hessian 1
    result = bx.minimize(problem, estimator, optax.sgd(schedule), jnp.zeros(()), key=key, T=400)
    assert abs(float(result.x) - 2.0) < 0.05


def test_conditional_stochastic_takes_the_sample_mean(key):
    """Level k sits at the mean of all 2^{k+1} - 2 draws so far, and its Hessian inverse is exact."""
    h = lambda x, eta, xi: {"u": x * eta + xi}
    problem = bx.conditional_stochastic(
        phi=lambda x, y, xi: y["u"] ** 2 + x,
        h=h,
        sample_context=lambda key, data: random.normal(key),
        sample_conditional=lambda key, xi, data: xi + random.normal(key),
    )
    x, xi = jnp.asarray(1.5), jnp.asarray(0.7)
    y = problem.lower(key, problem, x, xi, 3)
    draws = [
        h(x, problem.conditional(random.fold_in(random.fold_in(key, k), j), xi), xi)["u"]
        for k in (1, 2, 3)
        for j in range(2**k)
    ]
    np.testing.assert_allclose(y.last["u"], np.mean(draws), rtol=1e-12)
    np.testing.assert_allclose(y.prev["u"], np.mean(draws[:6]), rtol=1e-12)
    assert int(y.steps) == 14
    r, cost = problem.inverse(key, problem, x, y.last, xi, {"u": jnp.asarray(2.0)})
    assert float(r["u"]) == 2.0 and int(cost.hess_g) == 0


def test_conditional_stochastic_gradient_is_right(key):
    """F(x) = E (E[x eta | xi] + xi)^2 with E[eta|xi] = xi ~ N(0, 1): F = (x + 1)^2, F' = 2 (x + 1)."""
    problem = bx.conditional_stochastic(
        phi=lambda x, y, xi: y**2,
        h=lambda x, eta, xi: x * eta + xi,
        sample_context=lambda key, data: random.normal(key),
        sample_conditional=lambda key, xi, data: xi + 0.1 * random.normal(key),
    )
    estimator = bx.rt_mlmc(3)
    grads = jax.jit(jax.vmap(lambda k: estimator.estimate(k, problem, jnp.asarray(1.0), ())[0].grad))
    from bilevelax.testing import assert_mean

    assert_mean(grads(random.split(key, 20_000)), 4.0, power=0.8)


def test_rt_mlmc_on_plain_stochastic_optimization_is_sgd_bit_for_bit(key):
    f = lambda x, xi: jnp.sum((x["w"] @ xi) ** 2) + jnp.sum(jnp.sin(x["b"] * xi))
    sample = lambda key, data: random.normal(key, (3,))
    problem = bx.stochastic(f, sample)
    x1 = {"w": jnp.ones((2, 3)), "b": jnp.arange(3.0)}
    result = bx.minimize(problem, bx.rt_mlmc(5), optax.sgd(0.01), x1, key=key, T=20)

    @jax.jit
    def sgd(x):
        for t in range(1, 21):
            key_t = random.split(random.fold_in(key, t))[0]
            grad = jax.grad(f)(x, sample(random.split(key_t, 4)[0], ()))
            x = optax.apply_updates(x, jax.tree.map(lambda g: -0.01 * g, grad))
        return x

    expected = sgd(x1)
    for name in x1:
        np.testing.assert_array_equal(result.x[name], expected[name])
    assert result.cost.grad_g == 0


def test_from_arrays_samples_only_what_is_stored(key):
    contexts = {"z": jnp.arange(3.0)}
    outcomes = [np.array([10.0, 11.0]), np.array([20.0]), np.array([30.0, 31.0, 32.0])]
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: y * x + xi["z"],
        g=lambda x, y, eta, xi: (y - eta) ** 2 / 2,
        contexts=contexts,
        outcomes=outcomes,
        init_y=lambda x, xi: xi["z"],
        mu_g=1.0,
        L_g1=1.0,
    )
    check_problem(problem, jnp.asarray(0.0), key=key)
    xi = jax.vmap(problem.context)(random.split(key, 400))
    eta = jax.vmap(problem.conditional)(random.split(random.fold_in(key, 1), 400), xi)
    seen = {(int(row), float(value)) for row, value in zip(xi.row, eta, strict=True)}
    assert seen == {(i, float(v)) for i, values in enumerate(outcomes) for v in values}
    np.testing.assert_array_equal(xi.value["z"], contexts["z"][xi.row])
    # n = 6000 draws of outcome (30, 31, 32): standard error 0.0105
    y = bx.respond(problem, jnp.asarray(0.0), problem.nth_context(2), key=key, n=6000)
    assert abs(float(y) - 31.0) < 0.06
