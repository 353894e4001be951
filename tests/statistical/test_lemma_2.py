"""Bias, variance and cost of both estimators against the closed forms (Lemma 2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications import quadratic as application
from bilevelax.estimators.rt_mlmc import at_level, level_probabilities
from bilevelax.testing import assert_mean, assert_slope

pytestmark = pytest.mark.slow
MU_BETA0 = 1.0


@pytest.fixture(scope="module")
def oracle():
    """mu = 1 and L = 2, so that beta0 = 1 needs no cap and every closed form below is exact."""
    matrices = application.matrices(d_x=3, d_y=5, d_xi=2, mu=1.0, L=2.0, noise=0.5, hessian_noise=0.2)
    return matrices, application.problem_of(matrices)


X = np.array([0.5, -0.4, 0.8])
PARTS = {"lower": bx.epoch_sgd(MU_BETA0, cap=np.inf), "inverse": bx.neumann(8)}


def estimates(estimator, problem, n, seed=0):
    run = jax.jit(lambda keys: jax.lax.map(lambda key: estimator.estimate(key, problem, jnp.asarray(X), ()), keys))
    return run(random.split(random.key(seed), n))[0]


@pytest.mark.parametrize("make", [bx.rt_mlmc, bx.dl_sgd])
def test_40000_estimates_have_the_mean_of_the_closed_form(make, oracle):
    matrices, problem = oracle
    K = 4
    found = estimates(make(K, **PARTS), problem, 40_000)
    expected = matrices.expected_v_k(X, K + 1, beta0=MU_BETA0, N=8, L=problem.L_g1)
    assert_mean(found.grad, expected, power=0.25)
    # the mean differs visibly from that of one level less: the test can see an index shift
    shifted = matrices.expected_v_k(X, K, beta0=MU_BETA0, N=8, L=problem.L_g1)
    assert np.abs(shifted - expected).max() > 0.02


def test_expected_cost_of_rt_mlmc(oracle):
    K = 6
    found = estimates(bx.rt_mlmc(K, **PARTS), oracle[1], 40_000)
    assert_mean(found.cost.grad_g, 2 * K / (1 - 2.0**-K) - 2, power=0.6)
    points = 3 - level_probabilities(K)[0]  # at the first level v^k is v^1: two hypergradients instead of three
    assert_mean(found.cost.hess_g, points * (8 - 1) / 2, power=0.6)


def test_bias_falls_by_the_factor_of_the_mean_iterate():
    """With curvature mu in every direction an epoch multiplies the mean error by (1 - (1 - c/2^k)^{2^k})/c.

    Its limit is (1 - e^-c)/c = 0.632 for c = mu beta0 = 1, so the bias falls by 2^-0.662 a level,
    not by 2^-1/2; confirmed by 20,000 simulated estimates at level 3.
    """
    matrices = application.matrices(d_x=3, d_y=5, d_xi=2, mu=1.0, L=1.0, noise=0.5, hessian_noise=0.2)
    problem = application.problem_of(matrices)
    v = lambda k: matrices.expected_v_k(X, k, beta0=MU_BETA0, N=8, L=problem.L_g1)
    limit = matrices.expected_v(X, matrices.y_star(X, np.zeros(2)), 8, problem.L_g1)
    bias = [np.linalg.norm(v(k + 1) - limit) for k in range(8, 13)]
    assert_slope(range(8, 13), bias, np.log2(1 - np.exp(-MU_BETA0)), tol=0.005)
    one = lambda key: at_level(3, key, problem, jnp.asarray(X), K=3, **PARTS).grad
    found = jax.jit(lambda keys: jax.lax.map(one, keys))(random.split(random.key(3), 20_000))
    assert_mean(found, v(1) + (v(4) - v(3)) / level_probabilities(3)[2], power=0.4)


def total_variance(grad):
    return float(np.var(np.asarray(grad), axis=0, ddof=1).sum())


def squared_differences(problem, beta0, levels):
    """E|v^{k+1} - v^k|^2 for each level, from 1,000 estimates: at_level(k) = v^1 + (v^{k+1} - v^k)/p_k."""
    parts = {**PARTS, "lower": bx.epoch_sgd(beta0, cap=np.inf)}

    def difference(key, k):
        key_xi, _, _, key_v = random.split(key, 4)
        xi = problem.context(key_xi)
        first, _ = bx.hypergradient(key_v, problem, jnp.asarray(X), jnp.zeros(5), xi, parts["inverse"])
        return at_level(k, key, problem, jnp.asarray(X), K=9, **parts).grad - first

    run = jax.jit(lambda keys, k: jax.lax.map(lambda key: difference(key, k), keys))
    p = level_probabilities(9)
    return [float(np.sum((p[k - 1] * run(random.split(random.key(k), 1_000), k)) ** 2, axis=1).mean()) for k in levels]


def test_variance_is_linear_in_K_for_enough_step():
    """sum_k E|v^{k+1} - v^k|^2 / p_k is the part of the variance that depends on K.

    For c = mu beta0 = 1 and noise that dominates the initial error each term is a constant
    (E|.|^2 ~ 2^-k). For the paper's c = 1/4 the initial error dominates instead and falls by
    ((1 - e^-c)/c)^2 = 2^-0.35 a level: the variance grows like 1.57^K.
    """
    levels = range(4, 10)
    noisy = application.problem_of(
        application.matrices(d_x=3, d_y=5, d_xi=2, mu=1.0, L=1.0, noise=6.0, hessian_noise=0.2)
    )
    assert_slope(levels, squared_differences(noisy, 1.0, levels), -1.0, tol=0.2)
    quiet = application.problem_of(
        application.matrices(d_x=3, d_y=5, d_xi=2, mu=1.0, L=1.0, noise=0.1, hessian_noise=0.0)
    )
    assert_slope(levels, squared_differences(quiet, 0.25, levels), 2 * np.log2((1 - np.exp(-0.25)) / 0.25), tol=0.1)


def test_independent_draws_cost_a_factor_that_grows_like_2_to_K(oracle):
    """Negative control: the coupling is what keeps the variance small."""
    _, problem = oracle
    ratios = []
    for K in (2, 4, 6):

        def uncoupled(key, K=K):
            settings = {"K": K, **PARTS}
            k = bx.rt_mlmc(K).levels.draw(random.fold_in(key, 9))
            p = jnp.asarray(level_probabilities(K))[k - 1]
            key_xi, _, key_y, _ = random.split(key, 4)
            xi = problem.context(key_xi)
            y = settings["lower"](key_y, problem, jnp.asarray(X), xi, k)
            v = [
                bx.hypergradient(random.fold_in(key, i), problem, jnp.asarray(X), point, xi, settings["inverse"])[0]
                for i, point in enumerate((y.first, y.prev, y.last))
            ]
            return v[0] + (v[2] - v[1]) / p

        keys = random.split(random.key(K), 4_000)
        loose = total_variance(jax.jit(lambda keys: jax.lax.map(uncoupled, keys))(keys))
        ratios.append(loose / total_variance(estimates(bx.rt_mlmc(K, **PARTS), problem, 4_000, seed=K).grad))
    assert ratios[0] < ratios[1] < ratios[2] and ratios[2] > 5
