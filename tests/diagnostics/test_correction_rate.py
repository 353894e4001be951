"""`correction_rate`: the least work times variance of what the pilot shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevelax as bx
from bilevelax.applications import quadratic as quadratic_application
from bilevelax.core.minibatch import lane_keys
from bilevelax.estimators.antithetic_mlmc import level_probabilities


def test_correction_rate_is_the_least_work_times_variance(quadratic, x, key):
    """Of (V_0 + sum V_l / p_l)(C_0 + sum p_l C_l), with V and C as the estimates of the pilot show them."""
    rate = bx.correction_rate(quadratic, x, key=key, n0=2, levels=3, contexts=64, factor=2)
    levels = bx.antithetic_mlmc(2, 3, correction_rate=0.5, factor=2).levels
    keys = lane_keys(key, 64)
    at = jax.jit(lambda level: jax.vmap(lambda key: levels.at_level(level, key, quadratic, x))(keys))
    base, one = at(jnp.int32(0)), at(jnp.int32(1))
    delta = levels.probabilities[1] * (one.grad - base.grad)
    V = [np.var(base.grad, axis=0, ddof=1).sum(), np.sum(delta**2, axis=1).mean()]
    n0, d_y = 2, 4
    work = lambda drawn, solved: drawn + (2 + 2 + 2 * d_y) * solved  # f, cross; 2 gradients; 2 d_y products
    C = [work(n0, n0), work(2 * n0, 4 * n0)]

    def product(r):
        p = r * np.array(level_probabilities(3, 0.5, 1.5)[1:]) / 0.5
        scale = np.arange(3)
        return (V[0] + np.sum(V[1] * 4.0**-scale / p)) * (C[0] + np.sum(C[1] * 2.0**scale * p))

    grid = rate * np.geomspace(0.5, 2, 201)
    assert grid[np.argmin([product(r) for r in grid])] == pytest.approx(rate, rel=0.01)
    assert product(rate) < 0.9 * product(4 * rate) and product(rate) < 0.9 * product(rate / 4)


def test_correction_rate_where_there_is_nothing_to_correct(x, key):
    """Constant Hessians: no difference, yet the rate stays positive and with it the mean that of the deepest level."""
    problem = quadratic_application.problem_of(quadratic_application.matrices(d_x=3, d_y=4, d_xi=2, hessian_noise=0.0))
    assert bx.correction_rate(problem, x, key=key, n0=2, contexts=16, factor=8, levels=None) == 1e-3


def test_correction_rate_refuses(quadratic, x, key):
    with pytest.raises(ValueError, match=r"`contexts` of correction_rate must be an integer >= 2\. Got 1"):
        bx.correction_rate(quadratic, x, key=key, contexts=1)
    with pytest.raises(ValueError, match=r"`factor` of antithetic_mlmc must be an integer >= 2\. Got 1"):
        bx.correction_rate(quadratic, x, key=key, factor=1)
