"""Active sets that change between samples, among continuous contexts: gradients and biases in closed form.

y* = P(x + xi) on [0, 1] and f = (y - c)^2 / 2, so one estimate on n samples is 1{0 < u < 1} (u - c) with
u = x + xi + mean of eta. Its mean is an integral over u, which is normal with variance S^2 + SIGMA^2 / n.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from jax import lax, random

import bilevelax as bx
from bilevelax.core.estimate import Estimator
from bilevelax.testing import assert_mean, assert_slope

pytestmark = pytest.mark.slow

BATCH, CALLS = 100, 400  # 40,000 estimates
S, SIGMA, C = 0.5, 2.0, 2.0
X = jnp.asarray([0.2, 0.9])
N0, LEVELS = 4, 6


def problem(constraint):
    return bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - C) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - x - xi - eta) ** 2) / 2,
        sample_context=lambda key, data: S * random.normal(key, (2,), float),
        sample_conditional=lambda key, xi, data: SIGMA * random.normal(key, (2,), float),
        init_y=lambda x, xi: jnp.full(2, 0.5),
        constraint=constraint,
        mu_g=1.0,
        L_g1=1.0,
    )


def mean_on(n):
    """The mean of `saa(n)`; of grad F itself where n is infinite."""
    law = lambda x: scipy.stats.norm(x, np.sqrt(S**2 + SIGMA**2 / n))
    part = lambda x: scipy.integrate.quad(lambda u: (u - C) * law(x).pdf(u), 0, 1)[0]
    return np.asarray([part(float(x)) for x in X])


SETS = {"box": bx.box(0.0, 1.0), "polyhedron": bx.polyhedron(np.vstack([np.eye(2), -np.eye(2)]), [1.0, 1.0, 0.0, 0.0])}
ANTITHETIC = bx.antithetic_mlmc(n0=N0, levels=LEVELS, correction_rate=0.5, exponent=0.75, factor=2)


def batch_means(estimator, constraint, calls=CALLS):
    batch, on = bx.minibatch(estimator, BATCH), problem(constraint)
    one = lambda i: batch.estimate(random.fold_in(random.key(0), i), on, X, ())[0].grad
    return np.asarray(jax.jit(lambda: lax.map(one, jnp.arange(calls)))())


@pytest.mark.parametrize("name", SETS)
def test_antithetic_is_unbiased_where_active_sets_change(name):
    """Its mean is that of `saa(256)`, 0.02 from the gradient; that of `saa(4)` is 0.43 off, and the test sees half."""
    rows, power = batch_means(ANTITHETIC, SETS[name]), 0.2
    assert_mean(rows, mean_on(N0 * 2**LEVELS), power=power)
    assert_mean(rows, mean_on(np.inf), power=power, bias=np.abs(mean_on(256) - mean_on(np.inf)).max())
    with pytest.raises(AssertionError, match="off by"):
        assert_mean(rows, mean_on(N0), power=power)


def test_the_closed_form_is_that_of_sample_averages():
    assert_mean(batch_means(bx.saa(N0), SETS["box"]), mean_on(N0), power=0.05)


def test_a_gradient_that_ignores_the_face_is_seen():
    """Control: the right answers, and eq. (6) as if they could move freely."""

    def estimate(key, problem, x, state):
        key_xi, key_eta = random.split(key)
        xi = problem.context(key_xi)
        y = jnp.clip(x + xi + problem.conditionals(key_eta, xi, 256).mean(0), 0, 1)
        return bx.saa(1).estimate(key, problem, x, ())[0]._replace(grad=y - C), state

    rows = batch_means(Estimator(lambda problem, x: (), estimate), SETS["box"])
    with pytest.raises(AssertionError, match="off by"):
        assert_mean(rows, mean_on(np.inf), power=0.1, bias=0.02)


def test_differences_fall_by_the_root_of_two_only():
    """Samples cross a face with probability 1 / sqrt(n), and then the gradient jumps: E|Delta_l|^2 falls as 2^{-l/2}.

    Why `certify` ends its levels on such followers: with p_l of 2^{-1.5 l} the variance would be infinite.
    """
    levels, on = ANTITHETIC.levels, problem(SETS["box"])

    def square(k, i):
        here, base = (levels.at_level(j, random.fold_in(random.key(3), i), on, X).grad for j in (k, 0))
        return levels.probabilities[k] ** 2 * jnp.sum((here - base) ** 2)

    found = [
        float(jnp.mean(jax.jit(lambda k=k: lax.map(lambda i: square(k, i), jnp.arange(8000), batch_size=500))()))
        for k in range(3, LEVELS + 1)
    ]
    assert_slope(np.arange(3, LEVELS + 1), found, -0.5, tol=0.15)
