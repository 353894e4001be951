"""The identities of DL-SGD and RT-MLMC, their exact costs, and the four minibatch modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.estimators.rt_mlmc import at_level, draw_level, level_probabilities
from bilevelax.minibatch import leftover_levels, shares
from bilevelax.testing import assert_mean

PARTS = {"lower": bx.epoch_sgd(0.4), "inverse": bx.neumann(10)}


def telescoped(K, key, problem, x, **settings):
    """sum_k p_k at_level(k), each level compiled once."""
    run = jax.jit(lambda k, key: at_level(k, key, problem, x, K=K, **settings).grad)
    first = settings.get("base_level", 1)
    levels = [run(k, key) for k in range(first, K + 1)]
    p = level_probabilities(K, first)
    return jax.tree.map(lambda *v: sum(w * a for w, a in zip(p, v, strict=True)), *levels)


@pytest.mark.parametrize("K", [1, 2, 5])
@pytest.mark.parametrize("name", ["quadratic", "softmax"])
def test_rt_mlmc_telescopes_to_dl_sgd(K, name, quadratic, softmax, x):
    """Eq. (7) is an identity, not a statistic: average it over k by hand."""
    problem, point = softmax if name == "softmax" else (quadratic, x)
    estimate = jax.jit(lambda key: bx.dl_sgd(K, **PARTS).estimate(key, problem, point, ())[0].grad)
    for seed in range(2):
        key = random.key(seed)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12),
            telescoped(K, key, problem, point, **PARTS),
            estimate(key),
        )


@pytest.mark.parametrize("settings", [{"batch": 3}, {"base_level": 2}, {"lower": bx.sgd(0.4), "inverse": bx.dense(4)}])
def test_every_setting_telescopes(settings, quadratic, x, key):
    settings = {**PARTS, **settings}
    dl = {name: value for name, value in settings.items() if name != "base_level"}
    expected = bx.dl_sgd(3, **dl).estimate(key, quadratic, x, ())[0].grad
    np.testing.assert_allclose(telescoped(3, key, quadratic, x, **settings), expected, rtol=1e-12, atol=1e-12)


def test_independent_draws_break_the_identity(quadratic, x, key):
    """Negative control: three hypergradients with their own draws do not telescope."""
    run = jax.jit(lambda k, key: at_level(k, key, quadratic, x, K=3, **PARTS).grad)
    levels = [run(k, random.fold_in(key, k)) for k in (1, 2, 3)]
    mean = sum(w * v for w, v in zip(level_probabilities(3), levels, strict=True))
    expected = bx.dl_sgd(3, **PARTS).estimate(key, quadratic, x, ())[0].grad
    assert np.abs(mean - expected).max() > 1e-3


def test_costs_are_exact(quadratic, x, key):
    K, batch = 4, 3
    dl = bx.dl_sgd(K, batch=batch, **PARTS).estimate(key, quadratic, x, ())[0].cost
    n_hat = int(dl.hess_g) // batch
    assert 0 <= n_hat < 10 and int(dl.hess_g) == batch * n_hat
    steps = 2 ** (K + 1) - 2
    assert {k: int(v) for k, v in dl.asdict().items()} == {
        "xi": 1,
        "eta": steps + batch * (n_hat + 2),
        "grad_f": batch,
        "grad_g": steps,
        "hess_g": batch * n_hat,
        "cross_g": batch,
    }
    rt = at_level(2, key, quadratic, x, K=K, batch=batch, **PARTS).cost
    assert {k: int(v) for k, v in rt.asdict().items()} == {
        "xi": 1,
        "eta": 6 + batch * (n_hat + 2),  # the three hypergradients share their draws
        "grad_f": 3 * batch,
        "grad_g": 6,
        "hess_g": 3 * batch * n_hat,
        "cross_g": 3 * batch,
    }


@pytest.mark.parametrize("K", [1, 3, 8, 12])
def test_expected_number_of_lower_steps(K):
    p = level_probabilities(K)
    assert p.sum() == pytest.approx(1, abs=1e-15)
    steps = sum(p[k - 1] * (2 ** (k + 1) - 2) for k in range(1, K + 1))
    assert steps == pytest.approx(2 * K / (1 - 2.0**-K) - 2)
    assert steps <= 2 * K


def test_level_frequencies_by_chi_square():
    """100,000 levels; the 99.99 % point of chi-square with 5 degrees of freedom is 25.7."""
    n, K = 100_000, 6
    levels = jax.jit(jax.vmap(lambda key: draw_level(key, K)))(random.split(random.key(2), n))
    counts = np.bincount(np.asarray(levels), minlength=K + 1)[1:]
    expected = n * level_probabilities(K)
    assert np.sum((counts - expected) ** 2 / expected) < 25.7
    assert np.sum((counts - n / K) ** 2 / (n / K)) > 1000  # uniform levels, a published mistake, would be seen


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
    levels = [2, 2, 2, 1, 1, 1, 1, 1, 1, 3, left]  # a level that few lanes reach runs with the left-over ones
    run = jax.jit(lambda k, key: at_level(k, key, quadratic, x, K=K, **PARTS))
    lanes = [run(k, random.fold_in(key, i)) for i, k in enumerate(levels)]
    batched = jax.jit(lambda key: bx.minibatch(bx.rt_mlmc(K, **PARTS), m).estimate(key, quadratic, x, ())[0])(key)
    np.testing.assert_allclose(batched.grad, np.mean([lane.grad for lane in lanes], axis=0), rtol=1e-12, atol=1e-13)
    assert int(batched.cost.grad_g) == sum(2 ** (k + 1) - 2 for k in levels)
    assert int(batched.cost.eta) == sum(int(lane.cost.eta) for lane in lanes)


def test_leftover_levels_have_the_right_frequencies(key):
    fraction = np.array([0.7, 0.2, 0.6, 0.5])  # two lanes
    draws = jax.jit(jax.vmap(lambda key: leftover_levels(key, fraction, 2)))(random.split(key, 20_000))
    counts = jax.nn.one_hot(draws, 4).sum(1)
    assert_mean(counts, fraction, power=0.03)


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
