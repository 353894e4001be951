"""The four modes of a minibatch: equal numbers, equal means, and lanes of their levels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.core.levels import leftover_levels, shares
from bilevelax.estimators.rt_mlmc import at_level, level_probabilities
from bilevelax.testing import assert_mean

PARTS = {"lower": bx.epoch_sgd(0.4), "inverse": bx.neumann(10)}


def test_loop_and_vmap_give_equal_numbers(quadratic, x, key):
    found = {
        mode: jax.jit(
            lambda key, mode=mode: bx.minibatch(bx.rt_mlmc(3, **PARTS), 6, mode).estimate(key, quadratic, x, ())
        )(key)[0]
        for mode in ("loop", "vmap")
    }
    np.testing.assert_allclose(found["loop"].grad, found["vmap"].grad, rtol=1e-12, atol=1e-13)
    assert jax.tree.map(int, found["loop"].cost) == jax.tree.map(int, found["vmap"].cost)


def test_stratified_lanes_are_the_estimates_of_their_levels(quadratic, x, key):
    """m = 11, K = 3: p = (4, 2, 1)/7, so levels get 6, 3 and 1 lanes for sure and one lane is left over."""
    m, K = 11, 3
    sure, fraction = shares(tuple(level_probabilities(K)), m)
    assert sure.tolist() == [6, 3, 1]
    np.testing.assert_allclose(fraction, [2 / 7, 1 / 7, 4 / 7], atol=1e-12)
    left = 1 + int(leftover_levels(random.fold_in(key, m), fraction, 1)[0])
    levels = [3, 2, 2, 2, 1, 1, 1, 1, 1, 1, left]  # deepest first; four climb together
    run = jax.jit(lambda k, key: at_level(k, key, quadratic, x, K=K, **PARTS))
    lanes = [run(k, random.fold_in(key, i)) for i, k in enumerate(levels)]
    batched = jax.jit(lambda key: bx.minibatch(bx.rt_mlmc(K, **PARTS), m).estimate(key, quadratic, x, ())[0])(key)
    np.testing.assert_allclose(batched.grad, np.mean([lane.grad for lane in lanes], axis=0), rtol=1e-12, atol=1e-13)
    assert int(batched.cost.grad_g) == sum(2 ** (k + 1) - 2 for k in levels)
    assert int(batched.cost.eta) == sum(int(lane.cost.eta) for lane in lanes)


@pytest.mark.parametrize("mode", ["stratified", "shared"])
def test_modes_have_the_same_mean(mode, matrices, quadratic, x, key):
    """The closed form of E[v^3], within 5 standard errors of 3,000 minibatches of 6."""
    estimator = bx.minibatch(bx.rt_mlmc(2, **PARTS), 6, mode)
    grads = jax.jit(lambda keys: jax.lax.map(lambda key: estimator.estimate(key, quadratic, x, ())[0].grad, keys))(
        random.split(key, 3_000)
    )
    expected = matrices.expected_v_k(np.asarray(x), 3, beta0=0.4, N=10, L=quadratic.L_g1, cap=1 / (2 * quadratic.L_g1))
    assert_mean(grads, expected, power=0.4)


def test_minibatch_refuses_estimators_with_state(quadratic, x, key):
    stateful = bx.Estimator(
        init=lambda problem, x: jnp.zeros(()),
        estimate=lambda key, problem, x, state: (bx.Estimate(x, bx.Cost(), {}), state),
    )
    with pytest.raises(ValueError, match="must keep no state"):
        bx.minibatch(stateful, 4).estimate(key, quadratic, x, ())
