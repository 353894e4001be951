"""Minibatches whose contexts are spread over their numbers: the full batch, means, variances and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact_gradients import exact, gradient
from jax import random
from jax.flatten_util import ravel_pytree

import bilevelax as bx
from bilevelax.applications import meta_learning
from bilevelax.diagnostics.candidates import candidates
from bilevelax.problems.spread import spread_numbers
from bilevelax.testing import assert_mean

SINGLE = bx.saa("all")
PARTS = {"lower": bx.epoch_sgd(0.4, batch=4), "inverse": bx.neumann(5)}


@pytest.fixture(scope="module")
def tasks():
    """(problem, x): five tasks whose outcomes are stored."""
    app = meta_learning.make(tasks=5, classes=3, images=6, d=4, batch=1, norm=2.0)
    return app.problem, jax.tree.map(lambda a: 0.1 + a, app.x1)


@pytest.fixture(scope="module")
def of_numbers():
    """f = x * (5 + number of the context): a gradient tells which contexts were taken."""
    return bx.Problem(
        f=lambda x, y, eta, xi: x * xi.astype(float),
        g=lambda x, y, eta, xi: (y - x) ** 2,
        sample_context=lambda key, data: data[random.randint(key, (), 0, 5)],
        sample_conditional=lambda key, xi, data: random.normal(key),
        init_y=lambda x, xi: x,
        data=5 + jnp.arange(5),
        n_contexts=5,
        context_at=lambda i, data: data[i],
        mu_g=2.0,
        L_g1=2.0,
    )


@pytest.mark.parametrize(("n", "m"), [(7, 7), (12, 4), (10, 4), (3, 8), (1, 5), (2**30, 1000)])
def test_one_number_from_each_stretch(n, m, key):
    numbers = np.sort(np.asarray(spread_numbers(key, n, m), np.int64))
    edges = np.arange(m) * n / m
    assert (np.floor(edges) <= numbers).all() and (numbers < np.ceil(edges + n / m)).all()
    if m == n:
        assert numbers.tolist() == list(range(n))
    assert len(set(numbers.tolist())) >= min(n, m) - (n % m > 0) * m // 2


def test_every_lane_has_every_number_equally_often(key):
    """Otherwise the lanes of one level would meet other contexts than those of another."""
    draws = jax.jit(jax.vmap(lambda key: spread_numbers(key, 5, 3)))(random.split(key, 20_000))
    assert_mean(jax.nn.one_hot(draws, 5), np.full((3, 5), 1 / 5), power=0.02)


@pytest.mark.parametrize("mode", ["stratified", "loop", "vmap", "shared"])
@pytest.mark.parametrize("name", ["saa", "rt_mlmc", "dl_sgd", "antithetic_mlmc", "maml", "imaml"])
def test_every_context_once(name, mode, of_numbers, key):
    """With as many lanes as contexts the mean of 5, ..., 9 comes out, whatever the estimator and its levels."""
    made = {
        "saa": bx.saa(2),
        "rt_mlmc": bx.rt_mlmc(2, inverse=bx.neumann(1)),
        "dl_sgd": bx.dl_sgd(1, inverse=bx.neumann(1)),
        "antithetic_mlmc": bx.antithetic_mlmc(2, levels=1),
        "maml": bx.maml(),
        "imaml": bx.imaml(),
    }[name]
    one = lambda contexts, key: bx.minibatch(made, 5, mode, contexts).estimate(key, of_numbers, jnp.asarray(0.3), ())[0]
    take = jax.jit(lambda contexts, key: one(contexts, key).grad, static_argnums=0)
    keys = random.split(key, 3)
    np.testing.assert_allclose([take("spread", key) for key in keys], 7.0, rtol=1e-12)
    if mode == "stratified":
        assert np.ptp([take("independent", key) for key in keys]) > 0.1


def test_the_full_batch_on_all_outcomes_is_exact(tasks, key):
    problem, x = tasks
    wanted = jax.jit(lambda x: gradient(exact(problem), x))(x)
    full = bx.minibatch(bx.saa("all"), 5, contexts="spread")
    found = jax.jit(lambda key, problem, x: full.estimate(key, problem, x, ())[0])(key, problem, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8), found.grad, wanted)
    assert int(found.cost.xi) == 5


def test_same_mean_less_variance(tasks, key):
    """Of RT-MLMC with seven lanes for five contexts, against the independent ones."""
    problem, x = tasks
    means, variances = [], []
    for contexts in ("spread", "independent"):
        estimator = bx.minibatch(bx.rt_mlmc(2, **PARTS, batch=4), 7, contexts=contexts)
        grads = jax.jit(
            lambda keys, estimator=estimator: jax.lax.map(
                lambda key: ravel_pytree(estimator.estimate(key, problem, x, ())[0].grad)[0], keys
            )
        )(random.split(key, 800))
        means.append(grads)
        variances.append(float(grads.var(0).sum()))
    assert_mean(means[0] - means[1], 0.0, power=0.3 * float(jnp.abs(means[1].mean(0)).max()))
    assert variances[0] < 0.9 * variances[1]


def test_warm_starts_know_the_contexts(tasks, key):
    problem, x = tasks
    plain = bx.minibatch(bx.saa("all"), 5, contexts="spread")
    warm = bx.warm_started(plain)
    estimate = jax.jit(warm.estimate)
    found, state = estimate(key, problem, x, warm.init(problem, x))
    again, _ = estimate(key, problem, x, state)
    wanted = jax.jit(plain.estimate)(key, problem, x, ())[0].grad
    for each in (found, again):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8), each.grad, wanted)
    assert int(again.cost.grad_g) < int(found.cost.grad_g)


def test_certificates_of_finitely_many_contexts(tasks, key):
    """Of 5 stored contexts every one is taken, and nothing is left to chance; with an estimator of one, much is."""
    problem, x = tasks
    wanted = float(optax.tree.norm(jax.jit(lambda x: gradient(exact(problem), x))(x), squared=True))
    whole = bx.certify(problem, x, key=key)
    np.testing.assert_allclose([whole.low, whole.estimate, whole.high], wanted, rtol=1e-6)
    free = bx.certify(problem, x, key=key, n=32 * 8, estimator=SINGLE)
    assert free.low < whole.low == whole.high < free.high and whole.n == 5


def test_tune_takes_the_full_batch_where_it_is_small(tasks):
    problem, _ = tasks
    names = [each.name for each in candidates(problem, 32)]
    assert names[:2] == ["saa(n='all'), 5 contexts, spread", "saa(n=32), 35 contexts, spread"]
    assert candidates(problem, 4)[0].name == "saa(n='all'), 4 contexts"
    assert candidates(problem, 32, devices=8)[0].name == "saa(n='all'), 8 contexts, spread"


def test_what_spreading_needs(quadratic, tasks, x, key):
    with pytest.raises(ValueError, match=r"`contexts` of minibatch must be .*'even'"):
        bx.minibatch(bx.saa(2), 4, contexts="even")
    with pytest.raises(ValueError, match="needs finitely many contexts: Problem"):
        bx.minibatch(bx.saa(2), 4, contexts="spread").estimate(key, quadratic, x, ())
    silent = bx.stateless(lambda key, problem, x: bx.Estimate(x, bx.Cost(), {}))
    with pytest.raises(ValueError, match="tells which keys its contexts get"):
        bx.minibatch(silent, 4, contexts="spread").estimate(key, *tasks, ())
