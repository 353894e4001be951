"""RT-MLMC telescopes to DL-SGD; exact costs of both, and how often each level is drawn."""

import jax
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.core.levels import draw_level
from bilevelax.estimators.rt_mlmc import at_level, level_probabilities

PARTS = {"lower": bx.epoch_sgd(0.4), "inverse": bx.neumann(10)}


def telescoped(K, keys, problem, x, **settings):
    """sum_k p_k at_level(k) for each key, all levels by one program."""
    run = jax.jit(lambda k, key: at_level(k, key, problem, x, K=K, **settings).grad)
    first = settings.get("base_level", 1)
    p = level_probabilities(K, first)
    mean = lambda *v: sum(w * np.asarray(a) for w, a in zip(p, v, strict=True))
    return [jax.tree.map(mean, *(run(k, key) for k in range(first, K + 1))) for key in keys]


def dl_sgd(K, problem, x, **settings):
    return jax.jit(lambda key: bx.dl_sgd(K, **settings).estimate(key, problem, x, ())[0])


@pytest.mark.parametrize("K", [1, 2, 5])
@pytest.mark.parametrize("name", ["quadratic", "softmax"])
def test_rt_mlmc_telescopes_to_dl_sgd(K, name, quadratic, softmax, x):
    """Eq. (7) is an identity, not a statistic: average it over k by hand."""
    problem, point = softmax if name == "softmax" else (quadratic, x)
    keys, estimate = [random.key(seed) for seed in range(2)], dl_sgd(K, problem, point, **PARTS)
    for key, found in zip(keys, telescoped(K, keys, problem, point, **PARTS), strict=True):
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        jax.tree.map(close, found, estimate(key).grad)


@pytest.mark.parametrize("settings", [{"batch": 3}, {"base_level": 2}, {"lower": bx.sgd(0.4), "inverse": bx.dense(4)}])
def test_every_setting_telescopes(settings, quadratic, x, key):
    settings = {**PARTS, **settings}
    dl = {name: value for name, value in settings.items() if name != "base_level"}
    expected = dl_sgd(3, quadratic, x, **dl)(key).grad
    np.testing.assert_allclose(*telescoped(3, [key], quadratic, x, **settings), expected, rtol=1e-12, atol=1e-12)


def test_independent_draws_break_the_identity(quadratic, x, key):
    """Negative control: three hypergradients with their own draws do not telescope."""
    run = jax.jit(lambda k, key: at_level(k, key, quadratic, x, K=3, **PARTS).grad)
    levels = [run(k, random.fold_in(key, k)) for k in (1, 2, 3)]
    mean = sum(w * v for w, v in zip(level_probabilities(3), levels, strict=True))
    expected = dl_sgd(3, quadratic, x, **PARTS)(key).grad
    assert np.abs(mean - expected).max() > 1e-3


def test_costs_are_exact(quadratic, x, key):
    K, batch = 4, 3
    dl = dl_sgd(K, quadratic, x, batch=batch, **PARTS)(key).cost
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
    rt = jax.jit(lambda key: at_level(2, key, quadratic, x, K=K, batch=batch, **PARTS).cost)(key)
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
    p = tuple(level_probabilities(K))
    levels = jax.jit(jax.vmap(lambda key: draw_level(key, p, 1)))(random.split(random.key(2), n))
    counts = np.bincount(np.asarray(levels), minlength=K + 1)[1:]
    expected = n * level_probabilities(K)
    assert np.sum((counts - expected) ** 2 / expected) < 25.7
    assert np.sum((counts - n / K) ** 2 / (n / K)) > 1000  # uniform levels, a published mistake, would be seen
