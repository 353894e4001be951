"""Samples that `solve` descends on: the same numbers whatever is kept, and noise that is measured right."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.datasets import ClientStore
from bilevelax.run import sampled
from bilevelax.run.sampled import LANES, Sample

X = np.asarray([0.3, -0.7, 0.5])


def test_gradients_are_the_derivatives_of_the_values(quadratic, key):
    """Central differences of F, plain and debiased: what a line search needs."""
    sample = Sample(quadratic, jnp.asarray(X), key, 2 * LANES, 8, False)
    direction = np.asarray([1.0, 2.0, -1.0])
    for debias in (False, True):
        of = lambda t: (lambda p: p.debiased() if debias else p)(sample.at(X + t * direction, debias))  # noqa: B023
        slope = (of(1e-4).F - of(-1e-4).F) / 2e-4
        np.testing.assert_allclose(of(0.0).grad @ direction, slope, rtol=1e-6)


def test_chunks_that_are_not_kept_give_the_same_numbers(quadratic, key, monkeypatch):
    ask = lambda: Sample(quadratic, jnp.asarray(X), key, 3 * LANES, 8, False)
    kept = ask()
    first = kept.at(X, True)
    assert len(kept.kept) == 3
    monkeypatch.setattr(sampled, "KEPT", kept.bytes / 2)
    some = ask()
    again = some.at(X, True)
    assert len(some.kept) == 1
    np.testing.assert_array_equal(first.rows, again.rows)


def test_halving_shows_the_bias_and_removes_it(matrices, quadratic, key):
    """E v_n - grad F is of order 1/n; with n = 4 it is visible, and debiased it is not."""
    sample = Sample(quadratic, jnp.asarray(X), key, 2**14, 4, False)
    plain, true = sample.at(X, True), matrices.grad_F(X)
    bias = plain.bias.mean(0)
    error = np.linalg.norm(plain.bias.std(0, ddof=1)) / 8
    assert np.linalg.norm(bias) > 5 * error  # power
    debiased = plain.debiased()
    assert np.linalg.norm(debiased.grad - true) < 3 * debiased.noise
    assert np.linalg.norm(debiased.grad - true) < np.linalg.norm(plain.grad - true) + debiased.noise


def test_noise_is_the_error(matrices, quadratic):
    errors, noises = [], []
    for seed in range(30):
        point = Sample(quadratic, jnp.asarray(X), random.key(seed), 4 * LANES, 16, False).at(X, True).debiased()
        errors.append(np.sum((point.grad - matrices.grad_F(X)) ** 2))
        noises.append(point.noise**2)
    ratio = np.mean(errors) / np.mean(noises)
    assert abs(ratio - 1) < 5 * np.std(errors) / np.mean(noises) / np.sqrt(30) < 1.5


def test_numbered_contexts_are_taken_evenly(logistic, key):
    sample = Sample(logistic, jnp.ones(4), key, 6 * LANES, 8, False)
    numbers = np.stack([sample.numbers(c) for c in range(len(sample))])
    assert all((np.bincount(group, minlength=3) == 2).all() for group in numbers.T)
    exact = Sample(logistic, jnp.ones(4), key, 3, 8, True).at(np.ones(4), False)
    np.testing.assert_allclose(sample.at(np.ones(4), False).grad, exact.grad, rtol=1e-9)


def test_exact_gradients_are_those_of_all_outcomes(logistic, key):
    point = Sample(logistic, jnp.ones(4), key, 3, 8, True).at(np.ones(4), False)
    whole = bx.minibatch(bx.saa("all"), 3, contexts="spread")
    grad = whole.estimate(key, logistic, jnp.ones(4), whole.init(logistic, jnp.ones(4)))[0].grad
    np.testing.assert_allclose(point.grad, grad, rtol=1e-7)


@pytest.mark.parametrize("m", [LANES, 16 * LANES])
def test_one_program_serves_every_size(quadratic, key, m):
    Sample(quadratic, jnp.asarray(X), key, 2 * LANES, 8, False).at(X, True)
    before = sampled.answered._cache_size(), sampled.drawn._cache_size()
    Sample(quadratic, jnp.asarray(X), random.fold_in(key, 1), m, 8, False).at(X, False)
    assert (sampled.answered._cache_size(), sampled.drawn._cache_size()) == before


def test_clients_are_read_chunk_by_chunk(key, tmp_path):
    rows = np.random.default_rng(0).normal(size=(500, 3))
    store = ClientStore.write(tmp_path / "store", ({"a": row[None]} for row in rows))
    f = lambda x, y, eta, xi: jnp.sum((y - eta["a"]) ** 2) / 2
    g = lambda x, y, eta, xi: jnp.sum((y - x) ** 2) / 2
    problem = bx.from_clients(f, g, store, init_y=lambda x, xi: jnp.zeros(3), resident=8)
    reads = []
    read = lambda tags: reads.append(len(tags)) or problem.source.read(tags)
    watched = problem.replace(source=problem.source._replace(read=read))
    result = bx.solve(watched, jnp.full(3, 20.0), key=key, progress=False)
    assert result.certified and set(reads) == {LANES}
    assert np.linalg.norm(np.asarray(result.x) - rows.mean(0)) <= result.goal  # grad F = x - mean
