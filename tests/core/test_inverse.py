"""Neumann series by enumeration; the other inverses against the exact solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.core.inverse import default_N
from bilevelax.testing import assert_slope

R = np.array([1.0, -2.0, 0.5, 3.0])


@pytest.fixture(scope="module")
def noiseless():
    """Constant Hessian A: every estimate is a polynomial in A, exactly."""
    from bilevelax.applications import quadratic

    matrices = quadratic.matrices(d_x=3, d_y=4, d_xi=2, hessian_noise=0.0)
    return matrices, quadratic.problem_of(matrices)


def applied(inverse, problem, key, r=R):
    xi = problem.context(random.key(1))
    return jax.jit(lambda key: inverse(key, problem, jnp.zeros(3), jnp.zeros(4), xi, jnp.asarray(r)))(key)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_neumann_is_uniform_on_0_to_N_minus_1_and_its_mean_is_the_series(noiseless, scale):
    matrices, problem = noiseless
    N, h = 5, scale / problem.L_g1
    factor = np.eye(4) - h * matrices.A
    term = {n: N * h * np.linalg.matrix_power(factor, n) @ R for n in range(N)}
    seen = {}
    inverse = bx.neumann(N, scale=scale)
    run = jax.jit(jax.vmap(lambda key: inverse(key, problem, jnp.zeros(3), jnp.zeros(4), jnp.zeros(2), jnp.asarray(R))))
    values, costs = run(random.split(random.key(0), 64))
    for value, n in zip(values, costs.hess_g, strict=True):
        np.testing.assert_allclose(value, term[int(n)], rtol=1e-12)
        seen[int(n)] = value
    assert set(seen) == set(range(N))
    # enumeration: the mean over n_hat = 0..N-1 is A^-1 (I - (I - hA)^N) r
    exact = np.linalg.solve(matrices.A, R - np.linalg.matrix_power(factor, N) @ R)
    np.testing.assert_allclose(np.mean([seen[n] for n in range(N)], axis=0), exact, rtol=1e-12)
    # negative control: {1..N} instead of {0..N-1} leaves a bias that no N removes
    wrong = np.mean([factor @ seen[n] for n in range(N)], axis=0)
    assert np.linalg.norm(wrong - exact) > 0.05 * np.linalg.norm(exact)


def test_bias_of_the_series_falls_geometrically(noiseless):
    """Error in the direction of mu: (1 - mu h)^N / mu."""
    matrices, problem = noiseless
    direction = matrices.Q[:, 0]
    errors = []
    for N in (4, 8, 12, 16):
        value, _ = applied(bx.summed_neumann(N), problem, random.key(0), direction)
        errors.append(np.linalg.norm(value - direction / 1.0))  # mu = 1
    assert_slope((4, 8, 12, 16), errors, np.log2(1 - 1 / (2 * problem.L_g1)), tol=1e-9)


def test_summed_neumann_is_the_whole_series(noiseless):
    matrices, problem = noiseless
    h = 0.5 / problem.L_g1
    exact = h * sum(np.linalg.matrix_power(np.eye(4) - h * matrices.A, n) for n in range(7)) @ R
    value, cost = applied(bx.summed_neumann(7), problem, random.key(0))
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    assert int(cost.hess_g) == int(cost.eta) == 6


@pytest.mark.parametrize("inverse", [bx.conjugate_gradient(n=3, steps=4), bx.dense(n=3)])
def test_direct_solves(quadratic, key, inverse):
    """Both solve the mean Hessian of their three samples."""
    xi = quadratic.context(random.key(1))
    etas = quadratic.conditionals(key, xi, 3)
    columns = [
        np.mean([quadratic.hess_g(jnp.zeros(3), jnp.zeros(4), eta, xi, e) for eta in etas], axis=0) for e in jnp.eye(4)
    ]
    value, cost = applied(inverse, quadratic, key)
    np.testing.assert_allclose(value, np.linalg.solve(np.stack(columns, 1), R), rtol=1e-8)
    assert int(cost.eta) == 3


def test_none_leaves_the_implicit_term_out(quadratic, x, key):
    xi, y = quadratic.context(key), jnp.ones(4)
    grad, cost = bx.hypergradient(key, quadratic, x, y, xi, bx.none())
    eta = quadratic.conditional(random.split(key, 3)[0], xi)
    np.testing.assert_array_equal(grad, quadratic.grad_f(x, y, eta, xi)[0])
    assert (cost.eta, cost.grad_f, cost.cross_g, cost.hess_g) == (1, 1, 0, 0)


def test_default_N_is_the_smallest_with_one_percent_of_bias():
    mu, L = 2.0, 14.5
    N, rate = default_N(mu, L), 1 - mu / (2 * L)
    assert rate**N <= 0.01 < rate ** (N - 1)
    assert default_N(1.0, 1.0, scale=1.0) == 1  # Hessian I: exact at once
