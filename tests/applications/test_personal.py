"""Learned adapting: its hypergradient against differences of exact solves, and its extremes against what they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy.optimize import root

from bilevelax.applications._personal import (
    Clients,
    anchor,
    first,
    held_out_scores,
    learned_problem,
    log_probabilities,
    prior_of,
    shown_of,
)
from bilevelax.applications._softmax import Labelled, Tasks
from bilevelax.estimators.saa import saa

CLASSES, D, ROWS = 3, 2, 5


def clients(seed=0):
    """One client that shows two of three classes; its held-out rows have all three."""
    rng = np.random.default_rng(seed)
    rows = lambda n: np.concatenate([rng.normal(size=(1, n, D)), np.ones((1, n, 1))], axis=2)
    part = lambda n, labels: Labelled(
        jnp.asarray(rows(n)), jnp.asarray([labels], jnp.int32), jnp.asarray([n], jnp.int32)
    )
    tasks = Tasks(part(ROWS, [0, 2, 0, 2, 2]), part(3, [0, 1, 2]))
    centres = jnp.asarray(rng.normal(size=(1, CLASSES, D + 1)))
    shown = jnp.asarray(shown_of([np.array([0, 2])]))
    return Clients(tasks, shown, centres, jnp.zeros(1, jnp.int32), jnp.asarray([0.4, -0.4]))


def point():
    rng = np.random.default_rng(1)
    x = first(CLASSES, D + 1, True, hidden=2)
    x |= {"prototype": jnp.asarray([-1.0, 0.3, 0.4]), "scale": jnp.asarray(0.8), "absent": jnp.asarray(-0.7)}
    return x | {"B": jnp.asarray(0.3 * rng.normal(size=(2, D)))}


def upper(data, x):
    """F by NumPy's rules and SciPy's solver: nothing of the code under test but the features' map, written again."""
    x, tasks = jax.tree.map(np.asarray, x), jax.tree.map(np.asarray, data.tasks)
    phi = lambda a: np.concatenate([a[:, :2] + np.tanh(a[:, :2] @ x["A"]) @ x["B"], a[:, 2:]], axis=1)
    train, test = phi(tasks.train.features[0]), phi(tasks.test.features[0])
    labels, held = tasks.train.labels[0], tasks.test.labels[0]
    W = x["scale"] * np.asarray(data.centres[0]) + x["W"]
    spread, n = np.asarray(data.spread), len(labels)
    penalty = np.append(np.exp(x["penalty"][0] + x["penalty"][1] * spread), np.exp(x["penalty"][2]))
    weight = np.exp(x["prototype"][0] + x["prototype"][1] * spread)
    means = np.stack([train[labels == c].mean(axis=0)[:2] for c in (0, 2)])
    many = np.array([[np.sum(labels == c)] for c in (0, 2)])
    trust = many / (many + np.exp(x["prototype"][2]))
    middle = W[[0, 2]] + trust * np.column_stack([weight * means, -(weight * means**2).sum(axis=1) / 2])

    def logits(y, rows):
        made = rows @ W.T + x["absent"]
        made[:, [0, 2]] = rows @ y.T
        return made - np.log(np.exp(made).sum(axis=1, keepdims=True))

    def slope(y):
        y = y.reshape(2, 3)
        wrong = np.exp(logits(y, train)) - np.eye(CLASSES)[labels]
        return (wrong[:, [0, 2]].T @ train / n + penalty * (y - middle) / n).ravel()

    y = root(slope, middle.ravel(), method="hybr", options={"xtol": 1e-14}).x
    assert np.abs(slope(y)).max() < 1e-12
    return -np.mean(logits(y.reshape(2, 3), test)[np.arange(len(held)), held])


@pytest.fixture(scope="module")
def found():
    data = clients()
    problem = learned_problem(data, batch=ROWS, intercept=True)
    grad = jax.jit(lambda x: saa("all").estimate(random.key(0), problem, x, ())[0].grad)
    return data, problem, grad(point())


@pytest.mark.parametrize("name", ["W", "scale", "penalty", "prototype", "absent", "A", "B"])
def test_hypergradient_is_that_of_differences(found, name):
    """Central differences of F, whose lower level SciPy solves, along one random direction of each part of x."""
    data, _, grad = found
    x, h = point(), 1e-4
    direction = np.random.default_rng(2).normal(size=x[name].shape)
    moved = lambda h: upper(data, x | {name: np.asarray(x[name]) + h * direction})
    slope = (moved(h) - moved(-h)) / (2 * h)
    assert abs(slope) > 1e-4, "nothing depends on this part: the test has no power"
    np.testing.assert_allclose(np.sum(np.asarray(grad[name]) * direction), slope, rtol=1e-4)


def test_without_the_follower_the_gradient_is_wrong(found):
    """Control: the direct part alone says that penalties do not matter."""
    _, problem, grad = found

    @jax.jit
    def direct_part(x):
        xi = problem.nth_context(0)
        etas, _ = problem.outcomes(xi)
        eta = jax.tree.map(lambda a: a[0], etas)
        return problem.grad_f(x, problem.start(x, xi), eta, xi)[0]

    direct = direct_part(point())
    assert not np.any(direct["penalty"]) and np.all(np.abs(grad["penalty"]) > 1e-5)


def test_extremes_are_what_they_are_called():
    """Penalties without end: the pooled model, or nearest centroids where it counts for nothing."""
    data = clients()
    x = first(CLASSES, D + 1, True) | {"penalty": jnp.full(3, 18.0), "absent": jnp.asarray(-50.0)}
    rows, train = np.asarray(data.tasks.test.features[0]), data.tasks.train
    shown = data.shown[0]
    xi = learned_problem(data, batch=ROWS, intercept=True).nth_context(0)

    @jax.jit
    def guesses(x):
        prior = prior_of(x, data.centres[0], data.spread, True)
        y = anchor(x, prior, xi, True)
        return jnp.argmax(log_probabilities(x, prior.W, y, shown, jnp.asarray(rows), True), axis=1)

    pooled = guesses(x | {"prototype": jnp.asarray([-40.0, 0.0, 0.0])})
    np.testing.assert_array_equal(pooled, np.array([0, 2])[np.argmax(rows @ np.asarray(data.centres[0])[[0, 2]].T, 1)])
    nearest = guesses(x | {"prototype": jnp.zeros(3), "scale": jnp.zeros(())})
    means = np.stack([np.asarray(train.features[0])[np.asarray(train.labels[0]) == c].mean(axis=0) for c in (0, 2)])
    distance = np.sum((rows[:, None] - means[None]) ** 2, axis=2)
    np.testing.assert_array_equal(nearest, np.array([0, 2])[np.argmin(distance, axis=1)])


def test_scores_are_those_of_the_answers():
    data = clients()
    scores = held_out_scores(learned_problem(data, batch=ROWS, intercept=True), point(), True)
    np.testing.assert_allclose(scores.loss, [upper(data, point())], rtol=1e-3)
