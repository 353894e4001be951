"""Stochastic bilevel, conditional stochastic and plain stochastic optimization as problems."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx


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
