"""meta_learning and personalized_fl."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_gradients import answer, assert_matches_differences, exact, gradient
from jax import random

from bilevelax.applications import meta_learning, personalized_fl
from bilevelax.applications._softmax import Tasks, adapted_scores, everything
from bilevelax.core.inverse import none
from bilevelax.estimators.saa import saa
from bilevelax.exact.inverse import dense
from bilevelax.testing import assert_mean, check_problem

TINY = dict(tasks=2, classes=3, images=5, d=2, batch=2, norm=2.0)
FEW = dict(clients=5, unseen=2, classes=3, d=2, least=3, most=9, batch=2, norm=2.0)


@pytest.fixture(scope="module")
def meta():
    return meta_learning.make(**TINY)


@pytest.fixture(scope="module")
def federated():
    return personalized_fl.make(**FEW)


def point(application, seed=1, scale=0.5):
    W = application.x1["W"]
    return {"W": scale * random.normal(random.key(seed), W.shape, W.dtype)}


def test_meta_learning_is_a_problem_with_its_constants(meta):
    check_problem(meta.problem, meta.x1, key=random.key(0))
    assert meta.problem.mu_g == 2.0
    np.testing.assert_allclose(meta.problem.L_g1, 2.0 + 2.0**2 / 2)
    assert meta.problem.n_contexts == 2 and meta.x1["W"].shape == (3, 2)
    np.testing.assert_allclose(jnp.linalg.norm(meta.problem.data.test.features, axis=-1), 2.0)


def test_personalized_fl_is_a_problem_with_its_constants(federated):
    check_problem(federated.problem, federated.x1, key=random.key(0))
    assert federated.problem.n_contexts == 3
    counts = federated.problem.data.train.counts
    assert len(set(counts.tolist())) > 1, "clients of one size test no padding"


def test_smoothness_constant_is_attained():
    """Two classes, logits equal: diag(p) - p p' has eigenvalue 1/2."""
    app = meta_learning.make(tasks=1, classes=2, images=3, d=1, norm=3.0, lam=0.5, batch=1)
    eta = app.problem.conditional(random.key(0), jnp.int32(0))
    r = {"W": jnp.array([[1.0], [-1.0]])}
    product = jax.jit(app.problem.hess_g)(app.x1, app.x1, eta, 0, r)["W"]
    np.testing.assert_allclose(product, app.problem.L_g1 * r["W"], rtol=1e-12)


@pytest.mark.parametrize("name", ["meta", "federated"])
def test_hypergradient_against_differences(name, request):
    application = request.getfixturevalue(name)
    assert_matches_differences(exact(application.problem), point(application))


def test_moreau_gradient_is_lam_times_the_distance():
    application = personalized_fl.make(**FEW, moreau=True)
    problem, x = exact(application.problem), point(application)
    check_problem(application.problem, x, key=random.key(0))

    @jax.jit
    def at(x):
        answers = jax.vmap(lambda i: answer(problem, x, i)[1]["W"])(jnp.arange(3, dtype=jnp.int32))
        return answers.mean(0), [gradient(problem, x, inverse)["W"] for inverse in (none(), dense(1))]

    mean, gradients = at(x)
    for found in gradients:  # at y* the implicit term vanishes
        np.testing.assert_allclose(found, application.problem.mu_g * (x["W"] - mean), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["meta", "federated"])
def test_draws_have_the_mean_of_all_data(name, request):
    """Padding is never drawn and every row is: the mean gradients of g and f are those of all data."""
    application = request.getfixturevalue(name)
    problem, x = application.problem, point(application)
    y, xi = point(application, 2), jnp.int32(1)
    keys = random.split(random.key(3), 20_000)

    each = jax.jit(jax.vmap(lambda key: at(problem.conditional(key, xi))))

    @jax.jit
    def at(eta):
        return jnp.concatenate(
            [problem.grad_g(x, y, eta, xi)["W"].ravel(), problem.grad_f(x, y, eta, xi)[1]["W"].ravel()]
        )

    eta = everything(problem.data, xi)
    assert_mean(each(keys), at(eta), power=0.05)


@pytest.mark.parametrize("name", ["meta", "federated"])
def test_support_has_the_expectations_of_all_data(name, request):
    application = request.getfixturevalue(name)
    problem, x, y = application.problem, point(application), point(application, 2)
    weighted = problem.weighted()

    @jax.jit
    def both_ways(i):
        etas, eta = problem.outcomes(i), everything(problem.data, i)
        totals = [total(x, y, etas, i) for total in (weighted.g, weighted.f)]
        return totals, [loss(x, y, eta, i) for loss in (problem.g, problem.f)]

    for i in range(problem.n_contexts):
        np.testing.assert_allclose(*both_ways(jnp.int32(i)), rtol=1e-12)


def numpy_loss(W, features, labels):
    logits = features @ W.T
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]))


def test_metrics_against_numpy(meta):
    """Adapted by plain gradient descent on all training data, scored on all test data."""
    x = point(meta)
    losses, hits, centre = [], [], []
    for i in range(2):
        train, test = (jax.tree.map(lambda a: np.asarray(a[i]), part) for part in meta.problem.data)  # noqa: B023
        start = np.asarray(x["W"])
        W = start
        for _ in range(2000):
            p = np.exp(train.features @ W.T)
            p = p / p.sum(1, keepdims=True) - np.eye(3)[train.labels]
            W = W - 0.2 * (p.T @ train.features / len(train.labels) + 2.0 * (W - start))
        losses.append(numpy_loss(W, test.features, test.labels))
        hits.append(np.mean(np.argmax(test.features @ W.T, 1) == test.labels))
        centre.append(numpy_loss(start, test.features, test.labels))
    expected = {"upper_loss": np.mean(losses), "upper_accuracy": np.mean(hits), "centre_loss": np.mean(centre)}
    assert meta.metrics(x) == pytest.approx(expected, rel=1e-6)


def test_padding_and_unseen_clients_in_metrics(federated):
    """Rows beyond a client's count change nothing, and the last clients are the unseen ones."""
    x = point(federated)
    tasks = personalized_fl.held_out(personalized_fl.synthetic(5, 3, 2, 3, 9, 0.5, 0.5, 0), 0.25, 2.0)
    assert tasks.train.features.shape[1] > int(tasks.train.counts.min())

    def spoiled(rows):
        beyond = jnp.arange(rows.labels.shape[1], dtype=jnp.int32)[None, :] >= rows.counts[:, None]
        return rows._replace(features=jnp.where(beyond[..., None], 1e3, rows.features))

    tasks = Tasks(spoiled(tasks.train), spoiled(tasks.test))
    scores = adapted_scores(dataclasses.replace(federated.problem, data=tasks, n_contexts=5), x)
    assert federated.metrics(x) == pytest.approx(
        {
            "upper_loss": float(scores.loss[:3].mean()),
            "upper_accuracy": float(scores.accuracy[:3].mean()),
            "unseen_loss": float(scores.loss[3:].mean()),
            "unseen_accuracy": float(scores.accuracy[3:].mean()),
            "centre_loss": float(scores.centre_loss[:3].mean()),
        },
        rel=1e-12,
    )


def uneven(sizes=(4, 3, 80, 5, 4, 6), d=2):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, d)), np.arange(n) % 3) for n in sizes]


def test_clients_of_very_different_sizes_are_packed(monkeypatch):
    """Every number of the problem is that of padded clients; what is held goes with the rows."""
    features, labels = zip(*uneven(), strict=True)
    make = lambda: personalized_fl.make(features=features, labels=labels, unseen=1, norm=None, batch=2)
    packed = make()
    monkeypatch.setattr(personalized_fl, "PADDED", np.inf)
    padded = make()
    assert padded.problem.data.train.labels.shape == (5, 60) and padded.problem.L_g1 == packed.problem.L_g1
    assert packed.problem.data.train.labels.shape == (72,) and packed.problem.data.train.longest == 60
    x, key = point(padded), random.key(1)
    assert packed.metrics(x) == pytest.approx(padded.metrics(x), rel=1e-12)

    @jax.jit
    def at(problem, i):
        return problem.conditional(key, i), problem.weighted().g(x, x, problem.outcomes(i), i)

    for i in range(5):
        drawn, values = zip(*(at(app.problem, jnp.int32(i)) for app in (packed, padded)), strict=True)
        jax.tree.map(np.testing.assert_array_equal, *drawn)
        np.testing.assert_allclose(*values, rtol=1e-12)


def test_one_long_client_costs_its_own_rows():
    sizes = [10] * 500 + [20_000]
    tasks = personalized_fl.held_out(uneven(sizes), 0.25, None)
    held = sum(a.size for a in jax.tree.leaves(tasks))
    assert held <= 2 * 3 * sum(sizes)  # d + 1 numbers a row; padded: 500 * 20,000 of them


def test_given_features_are_used():
    features = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    app = meta_learning.make(features=features[:, :, :3], test_features=features[:, :, 3:], norm=None)
    np.testing.assert_allclose(app.problem.data.train.features[1], features[1, :, :3].reshape(9, 5))
    np.testing.assert_array_equal(app.problem.data.test.labels[0], [0, 1, 2])
    by_fraction = meta_learning.make(features=features, test_fraction=0.25, norm=None)
    jax.tree.map(np.testing.assert_array_equal, app.problem.data, by_fraction.problem.data)


def test_given_clients_are_used():
    rng = np.random.default_rng(0)
    features, labels = [rng.normal(size=(n, 4)) for n in (4, 8)], [np.arange(n) % 3 for n in (4, 8)]
    app = personalized_fl.make(features=features, labels=labels, unseen=1, norm=None)
    assert app.x1["W"].shape == (3, 4) and app.problem.data.train.counts.tolist() == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(lam=0.0), "`lam` of meta_learning must be a positive number. Got 0.0"),
        (dict(batch=0), "`batch` of meta_learning must be an integer >= 1. Got 0"),
        (dict(norm=-1.0), "`norm` of meta_learning must be a positive number"),
        (dict(classes=1), "`classes` of meta_learning must be an integer >= 2"),
        (dict(test_fraction=1.0), "`test_fraction` of meta_learning must lie between 0 and 1"),
        (
            dict(features=np.ones((2, 3, 4))),
            r"`features` of meta_learning must have shape \(tasks, classes, images, d\)",
        ),
        (dict(features=np.ones((2, 3, 1, 4))), "must leave at least one training image per class"),
        (
            dict(features=np.ones((2, 3, 4, 5)), test_features=np.ones((2, 3, 4, 6))),
            "must have the tasks, classes and d",
        ),
    ],
)
def test_meta_learning_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        meta_learning.make(**{**TINY, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(lam=-1.0), "`lam` of personalized_fl must be a positive number"),
        (dict(unseen=5), "`unseen` of personalized_fl must leave clients to train on. Got 5 of 5"),
        (dict(alpha=0.0), "`alpha` of personalized_fl must be a positive number"),
        (dict(most=2), "`most` of personalized_fl must be an integer >= 3"),
        (dict(test_fraction=0.0), "`test_fraction` of personalized_fl must lie between 0 and 1"),
        (dict(features=[np.ones((3, 2))] * 3), "`labels` of personalized_fl must hold one array for each of the 3"),
        (
            dict(features=[np.ones((3, 2)), np.ones((1, 2))], labels=[np.zeros(3, int), np.zeros(1, int)]),
            "for client 1",
        ),
    ],
)
def test_personalized_fl_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        personalized_fl.make(**{**FEW, **change})


def test_saa_on_all_data_is_the_exact_gradient_of_one_task(meta):
    problem, x = meta.problem, point(meta)
    one = dataclasses.replace(problem, sample_context=lambda key, data: jnp.int32(1), n_contexts=1)
    one = dataclasses.replace(one, context_at=lambda i, data: jnp.int32(1))
    found = jax.jit(lambda x: saa(n="all").estimate(random.key(0), one, x, ())[0].grad["W"])(x)
    np.testing.assert_allclose(found, jax.jit(lambda x: gradient(exact(one), x)["W"])(x), rtol=1e-5, atol=1e-8)
