"""antithetic_mlmc on problems whose sample average is visibly biased, with exact gradients by quadrature."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import bilevelax as bx
from bilevelax.testing import assert_mean, assert_slope

pytestmark = pytest.mark.slow

BATCH, CALLS = 100, 400  # 40,000 estimates
CONTEXTS = jnp.asarray([-0.5, 0.0, 0.7])


def newsvendor(sigma=1.2, smoothing=0.3):
    """A manufacturer sets prices; in each market a retailer orders against lognormal demand exp(xi + sigma z)."""

    def price(x, xi):
        return jax.nn.softplus(x[0] + x[1] * xi)

    def g(x, y, eta, xi):
        shortage = smoothing * jax.nn.softplus((eta - y[0]) / smoothing)
        return price(x, xi) * y[0] + 3.0 * shortage + 0.1 * y[0] ** 2

    def f(x, y, eta, xi):
        return -(price(x, xi) - 0.4) * y[0] + 0.2 * jnp.tanh(eta - y[0])

    nodes = np.linspace(-9.0, 9.0, 2001)  # the trapezoidal rule is exact to rounding for an analytic integrand
    weights = np.exp(-(nodes**2) / 2) / np.sum(np.exp(-(nodes**2) / 2))

    return bx.Problem(
        f=f,
        g=g,
        sample_context=lambda key, data: CONTEXTS[random.randint(key, (), 0, 3)],
        sample_conditional=lambda key, xi, data: jnp.exp(xi + sigma * random.normal(key, (), float)),
        init_y=lambda x, xi: jnp.ones(1),
        support=lambda xi, data: (jnp.exp(xi + sigma * jnp.asarray(nodes)), jnp.asarray(weights)),
        n_contexts=3,
        context_at=lambda i, data: CONTEXTS[i],
    )


@pytest.fixture(scope="module")
def market():
    """(problem without its quadrature, x, grad F by quadrature)."""
    problem, x = newsvendor(), jnp.asarray([1.0, 0.3])

    def at(i):
        known = dataclasses.replace(problem, sample_context=lambda key, data: problem.nth_context(i))
        return bx.saa("all").estimate(random.key(0), known, x, ())[0].grad

    gradient = jnp.mean(jax.jit(jax.vmap(at))(jnp.arange(3)), axis=0)
    return dataclasses.replace(problem, support=None), x, gradient


def batch_means(estimator, problem, x, key):
    batch = bx.minibatch(estimator, BATCH)
    one = lambda i: batch.estimate(random.fold_in(key, i), problem, x, ())[0].grad
    return jax.jit(lambda: lax.map(one, jnp.arange(CALLS)))()


def test_quadrature_is_exact(market):
    """The reference against central differences of F, itself by quadrature."""
    problem, x, gradient = newsvendor(), *market[1:]

    def F(x):
        def cost(xi):
            y = bx.respond(problem, x, xi, key=random.key(0))
            return problem.weighted().f(x, y, problem.outcomes(xi), xi)

        return sum(cost(xi) for xi in CONTEXTS) / 3

    h = 1e-5
    np.testing.assert_allclose(gradient, [(F(x + h * e) - F(x - h * e)) / (2 * h) for e in jnp.eye(2)], rtol=1e-6)


def test_heavy_tailed_demand_is_estimated_without_bias(market, key):
    """The plain sample average on 4 samples is off by 0.10 and 0.05; the test sees half of the former."""
    problem, x, gradient = market
    power = 0.05
    unbiased = batch_means(bx.antithetic_mlmc(n0=4, levels=None, correction_rate=0.5, factor=2), problem, x, key)
    assert_mean(unbiased, gradient, power=power)
    plain = batch_means(bx.saa(4), problem, x, key)
    with pytest.raises(AssertionError, match="off by"):
        assert_mean(plain, gradient, power=power)


@pytest.mark.parametrize("f_samples", ["same", "fresh"])
def test_differences_fall_by_four_per_level_on_the_newsvendor(market, key, f_samples):
    problem, x, _ = market
    _slope(bx.antithetic_mlmc(n0=16, levels=5, f_samples=f_samples, factor=2).levels, problem, x, key)


def test_differences_fall_by_four_per_level_on_the_softmax(softmax, key):
    _slope(bx.antithetic_mlmc(n0=8, levels=5, factor=2).levels, *softmax, key)


def _slope(levels, problem, x, key):
    """E|Delta_l|^2 over 2,000 contexts, for levels 1 to 5."""

    def squares(k, i):
        here = [levels.at_level(j, random.fold_in(key, i), problem, x).grad for j in (k, 0)]
        difference = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), *here)
        return levels.probabilities[k] ** 2 * sum(jax.tree.leaves(difference))

    found = [
        jnp.mean(jax.jit(lambda k=k: lax.map(lambda i: squares(k, i), jnp.arange(2000), batch_size=100))())
        for k in range(1, 6)
    ]
    assert_slope(np.arange(1, 6), np.asarray(found), -2.0, tol=0.3)
