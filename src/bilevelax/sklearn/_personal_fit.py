"""Fits of `applications._personal`: pooled models without each client, a start, descent; clients kept back choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from sklearn.linear_model import LogisticRegression

from bilevelax.applications._personal import SOLVER, Clients, first, held_out_scores, learned_problem, shown_of
from bilevelax.applications._softmax import Tasks
from bilevelax.applications.personalized_fl import ClientRows, labelled
from bilevelax.core.estimate import Estimator
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Problem, X
from bilevelax.estimators.saa import saa
from bilevelax.exact.linear import cg
from bilevelax.run.minimize import minimize

LONGEST = 256  # rows of a client that the upper level looks at: more say little about other clients
MODELS = 3  # pooled models, each without one third of the clients
POOLED = (0.003, 0.05, 1.0)  # their inverse penalties
STARTS: tuple[tuple[str, Any], ...] = (  # tried one after the other, each from the best before
    ("absent", (-6.0, -1.5, 0.0)),
    ("penalty", ([3.0, 0.0, 3.0], [6.0, 0.0, 6.0], [-2.0] * 3, [6.0] * 3)),
    ("scale", (0.0,)),
    ("prototype", ([-3.0, 0.0, 1.0], [-1.0, 0.0, 1.0], [-1.0, 0.0, 3.0])),
    ("absent", (-6.0, -3.0, -1.5, 0.0)),
    ("penalty", ([0.0] * 3, [3.0, 0.0, 3.0], [6.0, 0.0, 6.0], [-2.0] * 3, [3.0] * 3, [6.0] * 3)),
)
CHECKS = 6  # looks at the clients kept back
HALVINGS = 3  # contexts keep all of a client's training rows, a half, a quarter
KEPT_BACK = 4  # one client in so many is kept back
FEW_CLIENTS = 8  # clients: with fewer none is kept back, and there is no network
NETWORK, WIDEST = 64, 128  # hidden units; columns up to which a network pays its price
RATES = {"W": 0.01, "A": 0.1, "B": 0.1}  # of what has many numbers, relative to the rate of the few


class Fitting(NamedTuple):
    """Of a fit."""

    classes: int
    intercept: bool
    folds: int
    steps: int
    batch_size: int
    learning_rate: float
    seed: int


class Learned(NamedTuple):
    """x with the centre of all clients in it, the pooled model, and the variances that x speaks of."""

    x: X
    pooled: np.ndarray
    spread: np.ndarray
    steps: int
    loss: float  # on held-out rows of clients that the pooled model behind it did not see


def learn(clients: Sequence[ClientRows], settings: Fitting) -> Learned:
    """Choose a pooled model and a start, descend from there; all by the clients kept back."""
    columns, count = clients[0][0].shape[1], len(clients)
    hidden = NETWORK if count >= FEW_CLIENTS and columns <= WIDEST else 0
    x = first(settings.classes, columns, settings.intercept, hidden, settings.seed)
    parts = parts_of(clients, settings)
    kept = np.arange(count) % KEPT_BACK == 0 if count >= FEW_CLIENTS else np.ones(count, bool)
    tried = {}
    for C in POOLED:
        centres = crossed(clients, settings, C)
        watching = problem_of(parts, centres, kept, settings)
        tried[C] = mean_loss(watching, x, settings.intercept), centres, watching
    C = min(tried, key=lambda C: tried[C][0])
    _, centres, watching = tried[C]
    loss, x = best_start(watching, x, settings.intercept)
    training = problem_of(parts, centres, ~kept if count >= FEW_CLIENTS else kept, settings)
    loss, x, steps = descend(training, watching, x, settings)
    W = pooled(clients, settings, C)
    x = x | {"W": x["scale"] * W + x["W"], "scale": jnp.zeros((), float)}
    return Learned(jax.tree.map(np.asarray, x), W, parts.spread, steps, loss)


def folds_of(labels: np.ndarray, folds: int, rng: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(training, held-out) rows of a client, its labels spread evenly over folds."""
    mixed = rng.permutation(len(labels))[:LONGEST]
    mixed = mixed[np.argsort(labels[mixed], kind="stable")]
    fold = (np.arange(len(mixed)) + rng.integers(folds)) % folds
    for k in np.unique(fold):
        yield mixed[fold != k], mixed[fold == k]


def fewer(inside: np.ndarray, labels: np.ndarray, halvings: int, each: bool, rng: Any) -> np.ndarray:
    """A part of a client's training rows: whoever adapts later may have fewer, and what is learned must hold there.

    ``each``: some of each label as long as the rows last, as people choose examples; else as rows come in.
    """
    mixed = rng.permutation(inside)
    if each:
        place = np.zeros(len(mixed), int)  # of a row among those of its label
        for c in np.unique(labels[mixed]):
            place[labels[mixed] == c] = np.arange(np.sum(labels[mixed] == c))
        mixed = mixed[np.argsort(place, kind="stable")]
    return mixed[: max(1, len(inside) >> halvings)]


def pooled(clients: Sequence[ClientRows], settings: Fitting, C: float) -> np.ndarray:
    """Softmax regression on all clients' rows, (classes, columns)."""
    W = np.zeros((settings.classes, clients[0][0].shape[1] if clients else 0))
    features, labels = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    found = np.unique(labels)
    if len(found) < 2:
        return W
    rows = features[:, :-1] if settings.intercept else features
    model = LogisticRegression(C=C, max_iter=200, fit_intercept=settings.intercept).fit(rows, labels)
    coefs = np.concatenate([model.coef_, model.intercept_[:, None]], axis=1) if settings.intercept else model.coef_
    W[found] = np.concatenate([-coefs, coefs]) / 2 if len(found) == 2 else coefs
    return W


def within(clients: Sequence[ClientRows], intercept: bool) -> np.ndarray:
    """Rows less the mean of their client and class, without the constant column."""
    left = [
        rows[labels == c] - rows[labels == c].mean(axis=0)
        for rows, labels in clients
        for c in np.unique(labels)
        if np.sum(labels == c) > 1
    ]
    found = np.concatenate(left) if left else np.zeros((1, clients[0][0].shape[1]))
    return found[:, :-1] if intercept else found


def spread_of(clients: Sequence[ClientRows], intercept: bool) -> np.ndarray:
    """Logarithms of the variances within classes, of mean 0; columns without any count as the smallest."""
    variances = np.mean(within(clients, intercept) ** 2, axis=0)
    least = max(1e-4 * variances.mean(), np.finfo(float).tiny)
    logs = np.log(np.maximum(variances, least))
    return logs - logs.mean()


class Parts(NamedTuple):
    """The contexts of a fit: every client in every fold of its rows."""

    owner: np.ndarray  # the client of each context
    tasks: Tasks
    shown: np.ndarray
    spread: np.ndarray


def parts_of(clients: Sequence[ClientRows], settings: Fitting) -> Parts:
    rng, owner = np.random.default_rng(settings.seed), []
    train: list[ClientRows] = []
    test: list[ClientRows] = []
    for i, (features, labels) in enumerate(clients):
        for k, (inside, outside) in enumerate(folds_of(labels, settings.folds, rng)):
            inside = fewer(inside, labels, (i + k) % HALVINGS, i % 2 == 0, rng)
            owner.append(i)
            train.append((features[inside], labels[inside]))
            test.append((features[outside], labels[outside]))
    tasks = Tasks(labelled(train, None), labelled(test, None))
    return Parts(np.asarray(owner), tasks, shown_of([b for _, b in train]), spread_of(clients, settings.intercept))


def problem_of(parts: Parts, centres: np.ndarray, mask: np.ndarray, settings: Fitting) -> Problem:
    """Of the clients in the mask."""
    at = np.flatnonzero(mask[parts.owner])
    part = lambda rows: (
        jax.tree.map(lambda a: a[at], rows)
        if rows.starts is None
        else rows._replace(counts=rows.counts[at], starts=rows.starts[at])
    )
    tasks = Tasks(*map(part, parts.tasks))
    data = Clients(
        tasks,
        jnp.asarray(parts.shown[at]),
        jnp.asarray(centres, float),
        jnp.asarray(parts.owner[at] % len(centres), jnp.int32),
        jnp.asarray(parts.spread, float),
    )
    longest = max(rows.longest for rows in tasks)
    return learned_problem(data, batch=longest, intercept=settings.intercept)


def crossed(clients: Sequence[ClientRows], settings: Fitting, C: float) -> np.ndarray:
    """Pooled models, number k without the clients k, k + MODELS, ...; zero where there is but one client."""
    if len(clients) == 1:
        return np.zeros((1, settings.classes, clients[0][0].shape[1]))
    models = min(MODELS, len(clients))
    return np.stack([pooled([c for i, c in enumerate(clients) if i % models != k], settings, C) for k in range(models)])


def mean_loss(problem: Problem, x: X, intercept: bool) -> float:
    return float(np.nan_to_num(np.mean(held_out_scores(problem, x, intercept).loss), nan=np.inf))


def best_start(problem: Problem, x: X, intercept: bool) -> tuple[float, X]:
    """`STARTS` one after the other."""
    best = mean_loss(problem, x, intercept), x
    for name, values in STARTS:
        tried = [best[1] | {name: jnp.asarray(value, float)} for value in values]
        best = min([best, *((mean_loss(problem, each, intercept), each) for each in tried)], key=lambda pair: pair[0])
    return best


@lru_cache(maxsize=64)
def _estimator(tasks: int) -> Estimator:
    """The same object for equal settings, so that the program of one fit serves the next."""
    return minibatch(saa("all", SOLVER, cg(50, 1e-3)), tasks, contexts="spread")


@lru_cache(maxsize=64)
def _optimizer(learning_rate: float, steps: int, names: tuple[str, ...]) -> optax.GradientTransformation:
    """Adam, slower where x has many numbers."""
    slower = {name: optax.scale(RATES.get(name, 1.0)) for name in names}
    adam = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    return optax.chain(adam, optax.multi_transform(slower, {name: name for name in names}))


def descend(training: Problem, watching: Problem, x: X, settings: Fitting) -> tuple[float, X, int]:
    """Adam, slower where x has many numbers: the best of the looks at ``watching``, the first included."""
    looks: list[tuple[float, X, int]] = []
    every = max(1, settings.steps // CHECKS)

    def look(x: X) -> dict[str, float]:
        looks.append((mean_loss(watching, x, settings.intercept), x, every * len(looks)))
        return {"held_out_loss": looks[-1][0]}

    tasks = min(settings.batch_size, training.n_contexts or 1)
    minimize(
        training,
        _estimator(tasks),
        _optimizer(settings.learning_rate, settings.steps, tuple(x)),
        x,
        key=random.key(settings.seed),
        T=settings.steps,
        every=every,
        metrics=look,
        progress=False,
    )
    return min(looks, key=lambda found: found[0])
