"""EpochSGD against a transcription of Algorithm 1, its prefix property, and the other solvers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.testing import assert_slope


def algorithm_1(key, problem, x, xi, K, beta0, cap, restart=True):
    """y_1^0, ..., y_{K+1}^0, line by line."""
    y = np.asarray(problem.init_y(x, xi), np.float64)
    out = [y]
    for k in range(1, K + 1):
        iterates = []
        for j in range(2**k):
            iterates.append(y)
            eta = problem.conditional(random.fold_in(random.fold_in(key, k), j), xi)
            y = y - min(beta0 * 2.0**-k, cap) * np.asarray(problem.grad_g(x, jnp.asarray(y), eta, xi))
        out.append(np.mean(iterates, axis=0))
        y = out[-1] if restart else y
    return out


@pytest.fixture(scope="module")
def xi(quadratic):
    return quadratic.context(random.key(5))


@pytest.mark.parametrize("cap", [np.inf, 0.1])
@pytest.mark.parametrize("restart", [True, False])
def test_epoch_sgd_is_algorithm_1(quadratic, x, xi, key, cap, restart):
    expected = algorithm_1(key, quadratic, x, xi, 4, 0.3, cap, restart)
    solver = (bx.epoch_sgd if restart else bx.sgd)(beta0=0.3, cap=cap)
    solve = jax.jit(lambda K: solver(key, quadratic, x, xi, K))
    for K in (1, 2, 3, 4):
        y = solve(K)
        np.testing.assert_allclose(y.first, expected[0], atol=1e-14)
        np.testing.assert_allclose(y.prev, expected[K - 1], atol=1e-14)
        np.testing.assert_allclose(y.last, expected[K], atol=1e-14)
        assert int(y.steps) == int(y.cost.grad_g) == int(y.cost.eta) == 2 ** (K + 1) - 2


def test_prefix_property_and_static_epochs(quadratic, x, xi, key):
    """k epochs are the first k of K, bit for bit, whether k is traced or not."""
    solver = bx.epoch_sgd()
    solve = jax.jit(lambda K: solver(key, quadratic, x, xi, K))
    runs = {K: solve(K) for K in (1, 2, 3, 7)}
    np.testing.assert_array_equal(runs[2].last, runs[3].prev)
    np.testing.assert_array_equal(runs[1].last, runs[2].prev)
    static = jax.jit(lambda: solver(key, quadratic, x, xi, 7))()
    np.testing.assert_allclose(static.last, runs[7].last, atol=1e-15)


@pytest.mark.parametrize("block", [2, 6, 16])
def test_results_do_not_depend_on_the_block(quadratic, x, xi, key, block):
    last = [
        jax.jit(lambda s=s: s(key, quadratic, x, xi, 5).last)() for s in (bx.epoch_sgd(), bx.epoch_sgd(block=block))
    ]
    np.testing.assert_allclose(last[0], last[1], rtol=0, atol=1e-15)


def test_minibatch_per_step_averages_addressed_draws(quadratic, x, xi, key):
    expected = algorithm_1(key, quadratic.averaged(3), x, xi, 3, 0.3, np.inf)
    y = bx.epoch_sgd(beta0=0.3, cap=np.inf, batch=3)(key, quadratic, x, xi, 3)
    np.testing.assert_allclose(y.last, expected[-1], atol=1e-14)
    assert int(y.cost.eta) == int(y.cost.grad_g) == 3 * 14 and int(y.steps) == 14


def test_base_level_returns_that_iterate(quadratic, x, xi, key):
    solver = bx.epoch_sgd()
    np.testing.assert_allclose(
        solver(key, quadratic, x, xi, 4, base_level=3).first, solver(key, quadratic, x, xi, 2).last, atol=1e-15
    )


def test_default_constants_come_from_mu_and_L(quadratic, x, xi, key):
    given = bx.epoch_sgd(beta0=1 / quadratic.mu_g, cap=1 / (2 * quadratic.L_g1))
    np.testing.assert_array_equal(given(key, quadratic, x, xi, 4).last, bx.epoch_sgd()(key, quadratic, x, xi, 4).last)


def test_steps_on_a_set_are_projected(quadratic, x, xi, key):
    """What the epochs leave tells the face; its nearest point is the answer."""
    box = quadratic.replace(constraint=bx.box(-0.01, 0.02))
    y = box.land(x, bx.epoch_sgd()(key, box, x, xi, 5).last, xi)[0]
    assert np.all(y >= -0.01) and np.all(y <= 0.02) and np.any((y == -0.01) | (y == 0.02))
    ball = quadratic.replace(constraint=bx.ball(0.05))
    np.testing.assert_allclose(np.linalg.norm(ball.land(x, bx.epoch_sgd()(key, ball, x, xi, 5).last, xi)[0]), 0.05)


def test_pytree_y_and_float32(softmax, key):
    problem, x = softmax
    cast = lambda tree: jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.float64 else a, tree)
    narrow = dataclasses.replace(problem, data=cast(problem.data))
    wide, short = (
        bx.epoch_sgd()(key, p, point, {"task": jnp.asarray(1)}, 3).last
        for p, point in ((problem, x), (narrow, cast(x)))
    )
    assert {a.dtype for a in jax.tree.leaves(short)} == {jnp.dtype(jnp.float32)}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), wide, short)


def test_optax_steps_and_frozen(quadratic, x, xi, key):
    y = bx.optax_steps(optax.sgd(0.05), steps=6, batch=2)(key, quadratic, x, xi, 3)
    expected, problem = np.zeros(4), quadratic.averaged(2)
    for j in range(6):
        eta = problem.conditional(random.fold_in(key, j), xi)
        expected = expected - 0.05 * np.asarray(problem.grad_g(x, jnp.asarray(expected), eta, xi))
    np.testing.assert_allclose(y.last, expected, atol=1e-14)
    np.testing.assert_allclose(y.prev, expected, atol=1e-14)  # all steps belong to epoch 1
    assert int(y.steps) == 6 and int(y.cost.eta) == 12
    still = bx.frozen()(key, quadratic, x, xi, 5)
    np.testing.assert_array_equal(still.last, np.zeros(4))
    assert int(still.steps) == 0


def test_error_falls_by_half_a_level_only_for_enough_step(matrices, x):
    """Noise-free bias per epoch in the direction of curvature mu tends to (1 - e^-c)/c, c = mu beta0.

    It is 0.632 for c = 1 and 0.885 for c = 1/4 (the paper's constant); both are seen in the exact
    means, k = 6..10, of the slowest eigendirection.
    """
    Q, y_star = matrices.Q[:, 0], matrices.y_star(np.asarray(x), np.zeros(2))
    for c in (1.0, 0.25):
        gaps = [abs(Q @ (matrices.expected_y(np.asarray(x), k, c) - y_star)) for k in range(6, 11)]
        assert_slope(range(5), gaps, np.log2((1 - np.exp(-c)) / c), tol=0.02)


def test_the_cap_prevents_the_blow_up_of_early_epochs(x):
    """kappa = 100 and mu beta0 = 4: the uncapped mean overshoots by orders of magnitude."""
    from bilevelax.applications import quadratic

    ill = quadratic.matrices(d_x=3, d_y=4, d_xi=2, mu=1.0, L=100.0)
    size = np.linalg.norm(ill.y_star(np.asarray(x), np.zeros(2)))
    wild = max(np.linalg.norm(ill.expected_y(np.asarray(x), k, 4.0)) for k in range(1, 8))
    calm = max(np.linalg.norm(ill.expected_y(np.asarray(x), k, 4.0, cap=1 / 200)) for k in range(1, 8))
    assert wild > 1e6 * size and calm < 2 * size
