"""Coverage of certificates with the estimators themselves, 1,000 repetitions at each point."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.core.lower import epoch_sgd
from bilevelax.diagnostics.estimates import BATCHES, batch_means
from bilevelax.diagnostics.intervals import squared_norm

pytestmark = pytest.mark.slow

REPETITIONS = 1000
EACH = 4  # estimates in a batch


def affine_mean(matrices, problem, estimator_settings):
    """E v = slope x + constant of `rt_mlmc`, from its closed form."""
    at = lambda x: matrices.expected_v_k(np.asarray(x, float), **estimator_settings)
    d = matrices.B.shape[1]
    constant = at(np.zeros(d))
    return np.stack([at(e) - constant for e in np.eye(d)], axis=1), constant


@pytest.fixture(scope="module", params=["antithetic_mlmc", "rt_mlmc"])
def case(request, matrices, quadratic):
    """(estimator, slope, constant): E v = slope x + constant."""
    if request.param == "antithetic_mlmc":
        constant = matrices.grad_F(np.zeros(3))
        slope = np.stack([matrices.grad_F(e) - constant for e in np.eye(3)], axis=1)
        return bx.antithetic_mlmc(8, None, 0.1, factor=2), slope, constant
    K, N, L = 4, 20, quadratic.L_g1
    steps = {"beta0": 1 / quadratic.mu_g, "cap": 1 / (2 * L)}
    estimator = bx.rt_mlmc(K, epoch_sgd(**steps), bx.neumann(N, L))
    return estimator, *affine_mean(matrices, quadratic, {"k": K + 1, "N": N, "L": L, **steps})


def covered(key, problem, x, estimator, exact):
    """Share of 95 % intervals that hold the true |E v|^2, and the rows they were made of."""
    batched = bx.minibatch(estimator, EACH)
    rows = np.asarray(batch_means(key, problem, x, estimator=batched, batches=REPETITIONS * BATCHES))
    intervals = [squared_norm(group, 0.95) for group in rows.reshape(REPETITIONS, BATCHES, -1)]
    return np.mean([low <= exact <= high for _, low, high in intervals]), rows, np.mean([e for e, *_ in intervals])


def test_coverage(case, quadratic):
    estimator, slope, constant = case
    zero = np.linalg.solve(slope, -constant)
    share, rows, _ = covered(random.key(0), quadratic, jnp.asarray(zero), estimator, 0.0)
    assert share >= 0.93
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    noise = np.sqrt(values[-1] / BATCHES)  # of the mean, along its main direction
    shares = {}
    for i, ratio in enumerate((0.5, 1.5, 3.0, 30.0)):
        x = zero + np.linalg.solve(slope, ratio * noise * vectors[:, -1])
        exact = float(np.sum((slope @ x + constant) ** 2))
        shares[ratio], _, mean = covered(random.key(1 + i), quadratic, jnp.asarray(x), estimator, exact)
        assert mean == pytest.approx(exact, rel=0.2, abs=0.2 * noise**2)
    print(f"coverage at zero {share:.3f}, by |E v| / noise: {shares}")
    assert shares.pop(30.0) >= 0.93
    assert min(shares.values()) >= 0.88, shares


def test_two_looks_stop_too_early_seldom():
    """Where the gradient is just above eps, a rule that asks twice stops in well under 1 % of the looks."""
    rng = np.random.default_rng(0)
    mean = np.array([1.0, 0.0, 0.0])
    stops = 0
    for _ in range(2000):
        highs = [squared_norm(mean + rng.normal(size=(BATCHES, 3)) * 3, 0.95)[2] for _ in range(2)]
        stops += max(highs) <= 0.99
    assert stops / 2000 < 0.01, stops
