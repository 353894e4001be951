"""Samples that `solve` descends on: the same numbers whatever is kept, and noise that is measured right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import bilevelax as bx
from bilevelax.datasets import ClientStore
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_on
from bilevelax.run import sampled
from bilevelax.run.lanes import LANES, SAMPLES, work_of_lane
from bilevelax.run.sampled import Sample
from bilevelax.run.solving import MOST_SAMPLES

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
    grad = jax.jit(lambda x: whole.estimate(key, logistic, x, whole.init(logistic, x))[0].grad)(jnp.ones(4))
    np.testing.assert_allclose(point.grad, grad, rtol=1e-7)


PROGRAMS = sampled.drawn, sampled.drawn_soon, sampled.answered, sampled.answered_soon


def test_three_programs_serve_every_size(quadratic, key):
    """One draws, one answers small stages, one large ones: m and n are data."""
    ask = lambda m, n: Sample(quadratic, jnp.asarray(X), key, m, n, False).at(X, n > 8)
    ask(2 * LANES, 8), ask(80 * LANES, SAMPLES)
    before = [program._cache_size() for program in PROGRAMS]
    for m, n in [(LANES, SAMPLES), (48 * LANES, 8), (LANES, 4 * SAMPLES), (LANES, MOST_SAMPLES)]:
        ask(m, n)
    assert [program._cache_size() for program in PROGRAMS] == before


def test_small_stages_are_answered_by_the_program_that_compiles_fast(quadratic, key):
    """By counts: 24 chunks twice are small, 25 are not, of few bytes 64; a stage that goes on becomes large."""
    chosen = lambda sample, chunk: [sample.answering(chunk) for _ in range(130)]
    of = lambda chunks: Sample(quadratic, jnp.asarray(X), key, chunks * LANES, SAMPLES, False)
    drawn = of(1).draw(jnp.asarray(X), 0)
    light, chunk = (drawn._replace(etas=np.broadcast_to(np.float32(0), size)) for size in (64, 2**18))
    assert chosen(of(1), chunk) == [sampled.answered_soon] * 48 + [sampled.answered] * 82
    assert chosen(of(1), light) == [sampled.answered_soon] * 128 + [sampled.answered] * 2
    assert of(64).answering(light) is sampled.answered_soon and of(65).answering(light) is sampled.answered
    assert of(24).answering(chunk) is sampled.answered_soon and of(25).answering(chunk) is sampled.answered
    large = chunk._replace(weights=np.broadcast_to(np.float32(0), (64, 2**20)))  # 256 MB
    assert of(1).answering(large) is sampled.answered
    numbered = {"n_contexts": 10_000, "context_at": lambda i, data: i}
    stored = quadratic.replace(**numbered, support=lambda xi, data: None)  # a large stage will come
    assert Sample(stored, jnp.asarray(X), key, LANES, SAMPLES, False).answering(chunk) is sampled.answered


def test_draws_that_take_long_are_drawn_by_the_program_that_runs_fast(quadratic, key):
    """By the numbers that they make on their way: a loop counts as often as it turns; a large stage counts more."""
    chosen = lambda problem, m=LANES: Sample(problem, jnp.asarray(X), key, m, SAMPLES, False).drawing
    assert chosen(quadratic) is sampled.drawn_soon
    assert chosen(quadratic, 2**12 * LANES) is sampled.drawn

    def walk(steps):
        day = lambda t, eta: eta + random.normal(random.fold_in(key, t), eta.shape)
        simulated = lambda key, xi, data: lax.fori_loop(0, steps, day, quadratic.sample_conditional(key, xi, data))
        return quadratic.replace(sample_conditional=simulated)

    few, many = (work_of_lane(walk(steps), key) for steps in (100, 200))
    assert 1.9 < many / few < 2.0
    assert chosen(walk(1)) is sampled.drawn_soon and chosen(walk(1000)) is sampled.drawn


@pytest.mark.parametrize("together", [LANES, 16])
def test_lanes_that_share_a_context_answer_as_one(quadratic, key, together, monkeypatch):
    """n = 4 SAMPLES: the gradients are those of all of a context's samples in one stack."""
    x, n = jnp.asarray(X), 4 * SAMPLES
    sample = Sample(quadratic, x, key, LANES, n, False)
    chunks = [sample.draw(x, c) for c in range(len(sample))]
    rows = lambda a: np.asarray(a).reshape(-1, n, *a.shape[2:])  # the samples of each context
    etas = jax.tree.map(lambda *parts: np.concatenate([rows(a) for a in parts]), *(chunk.etas for chunk in chunks))
    xis = np.concatenate([np.asarray(chunk.xi)[::4] for chunk in chunks])

    alone = jax.jit(jax.vmap(lambda xi, etas: grad_on(quadratic, x, xi, etas)))
    expected = alone(xis, etas)
    monkeypatch.setattr(sampled, "at_once", lambda chunk: together)
    np.testing.assert_allclose(sample.at(X, False).rows, expected, rtol=1e-7)
    first = jax.tree.map(lambda a: a[:, :SAMPLES], etas)  # negative control: a lane alone answers otherwise
    assert abs(alone(xis, first) - expected).max() > 1e-3


def grad_on(problem, x, xi, etas):
    """The gradient of one context, on all of its samples at once."""
    n = len(jax.tree.leaves(etas)[0])
    average = of_stack(problem, x, xi, etas, jnp.full(n, 1 / n), n)
    return respond_on(average, problem.start(x, xi), newton_solver(tol=1e-12)).grad


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
