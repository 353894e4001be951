r"""Softmax regression whose adapting is learned too: centre, penalties, prototypes, labels never shown, features.

A context is a client with n training rows. It shows the classes C_i, with means mu_c, and was no part of the pooled
model P_i that it starts from. With x = (s, W, r, t, delta), log-penalties rho = Phi r, log-weights tau = Phi' t, and
h_c = n_c / (n_c + kappa), the trust in a mean of n_c rows:

.. math::
    y^* = \arg\min_y \, CE(y; train) + \frac{1}{2n} \sum_{c \in C_i} \sum_j e^{\rho_j} (y_{cj} - m_{cj}(x))^2, \quad
    m_c(x) = s P_{ic} + W_c + h_c (e^{\tau} \mu_c, -\tfrac12 \sum_j e^{\tau_j} \mu_{cj}^2)

and f = CE(y*; held-out rows). Classes that the client has not shown keep the centre's row s P_ic + W_c, with delta on
top of their logit. The family holds what it must not lose to: the pooled model (rho = inf, tau = -inf), a model of the
client's rows alone (rho = -inf), ridge towards the pooled model (tau = -inf), nearest centroids (s = 0, rho = inf).

The penalty is divided by n, as that of a prior is, and kappa counts rows: one x serves clients of every size. Phi has
three columns, so few clients are enough: a constant, the logarithm of a feature's variance within classes, and the
intercept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.applications._softmax import LANES, Pair, Sample, Tasks, blocks, draw, everything
from bilevelax.base.compiling import program
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.exact.linear import cg
from bilevelax.exact.sample_average import newton_solver, of_stack

SOLVER = newton_solver(12, cg(30, 1e-2), 1e-3)  # of fits: what is left is far below what few rows leave open
ABSENT = -1  # in `shown`: no class


class Clients(NamedTuple):
    """The data leaves of the problem."""

    tasks: Tasks
    shown: jax.Array  # (clients, most classes of one): the classes in the training rows, then ABSENT
    centres: jax.Array  # (models, classes, columns): pooled models, each without some of the clients
    centre: jax.Array  # (clients,): which of them did not see this client
    spread: jax.Array  # (columns without the intercept): logarithms of variances within classes, mean 0


class Client(NamedTuple):
    """xi: what a client shows of itself, and what it starts from."""

    number: jax.Array
    shown: jax.Array
    size: jax.Array
    rows: Sample  # all its training rows, which prototypes need
    centre: jax.Array
    spread: jax.Array


class Prior(NamedTuple):
    """What a client's rows are held at: the centre and, by column, the penalty and the weight of prototypes."""

    W: jax.Array  # (classes, columns)
    penalty: jax.Array  # (columns,)
    weight: jax.Array  # (columns without the intercept,)
    kappa: jax.Array  # rows that a prototype must have to count for half


def first(classes: int, columns: int, intercept: bool, hidden: int = 0, seed: int = 0) -> X:
    """Half-way between all extremes, at the pooled model."""
    x = {
        "scale": jnp.ones((), float),
        "W": jnp.zeros((classes, columns), float),
        "penalty": jnp.zeros(3, float),
        "prototype": jnp.asarray([-6.0, 0.0, 1.0], float),  # a constant, spread, log kappa
        "absent": jnp.asarray(-3.0, float),
    }
    if hidden:
        d = columns - intercept
        A = (
            np.random.default_rng(seed).normal(size=(d, hidden)) / 2
        )  # rows are about 2 long in any direction that is shared
        x |= {"A": jnp.asarray(A, float), "B": jnp.zeros((hidden, d), float)}
    return x


def mapped(x: X, features: jax.Array, intercept: bool) -> jax.Array:
    """phi(a) = a + B' tanh(A' a) where x has this network; the constant column stays."""
    if "A" not in x:
        return features
    rows = features[..., :-1] if intercept else features
    rows = rows + jnp.tanh(rows @ x["A"]) @ x["B"]
    return jnp.concatenate([rows, features[..., -1:]], axis=-1) if intercept else rows


def prior_of(x: X, centre: jax.Array, spread: jax.Array, intercept: bool) -> Prior:
    """The prior that x gives to clients who start from this pooled model."""
    r, t = x["penalty"], x["prototype"]
    columns = jnp.exp(r[0] + r[1] * spread)
    penalty = jnp.concatenate([columns, jnp.exp(r[2:])]) if intercept else columns
    return Prior(x["scale"] * centre + x["W"], penalty, jnp.exp(t[0] + t[1] * spread), jnp.exp(t[2]))


def anchor(x: X, prior: Prior, xi: Client, intercept: bool) -> jax.Array:
    """m(x), of shape (classes shown, columns)."""
    shown, rows = xi.shown, xi.rows
    belongs = jnp.where(rows.labels[None] == shown[:, None], rows.weights[None], 0)
    share = jnp.sum(belongs, axis=1, keepdims=True)
    means = belongs @ mapped(x, rows.features, intercept) / jnp.where(share > 0, share, 1)
    if intercept:
        lengths = jnp.sum(prior.weight[None] * means[:, :-1] ** 2, axis=1, keepdims=True) / 2
        means = jnp.concatenate([prior.weight[None] * means[:, :-1], -lengths], axis=1)
    else:
        means = prior.weight[None] * means
    seen = share * xi.size
    return jnp.where((shown >= 0)[:, None], prior.W[jnp.maximum(shown, 0)] + seen / (seen + prior.kappa) * means, 0)


def log_probabilities(x: X, W: jax.Array, y: Y, shown: jax.Array, features: jax.Array, intercept: bool) -> jax.Array:
    """(rows, classes): y for the classes that the client has shown, the centre's rows and delta for the others."""
    rows = mapped(x, features, intercept)
    logits = rows @ W.T + x["absent"]
    where = jnp.where(shown >= 0, shown, logits.shape[1])  # what is outside is dropped
    logits = logits.at[:, where].set(rows @ y.T, mode="drop")
    return jax.nn.log_softmax(logits, axis=1)


def loss(x: X, W: jax.Array, y: Y, sample: Sample, shown: jax.Array, intercept: bool) -> jax.Array:
    logs = log_probabilities(x, W, y, shown, sample.features, intercept)
    return -jnp.sum(sample.weights * jnp.take_along_axis(logs, sample.labels[:, None], axis=1)[:, 0])


def context_at(i: Any, data: Clients) -> Client:
    train = data.tasks.train
    size = train.counts[i].astype(train.features.dtype)
    rows = everything(Tasks(train, train), i).train
    return Client(jnp.asarray(i, jnp.int32), data.shown[i], size, rows, data.centres[data.centre[i]], data.spread)


def learned_problem(clients: Clients, *, batch: int, intercept: bool) -> Problem:
    """The problem above on these clients, all equally likely.

    Args:
        clients: their training and held-out rows, and the pooled models.
        batch: rows in each of the two samples of eta.
        intercept: whether the last column of the rows is a constant.
    """
    return _learned(batch, intercept).replace(
        data=clients, n_contexts=int(clients.shown.shape[0]), context_at=context_at
    )


@lru_cache(maxsize=64)
def _learned(batch: int, intercept: bool) -> Problem:
    """The same functions for equal settings, so that compiled programs serve all clients."""
    of = lambda x, xi: prior_of(x, xi.centre, xi.spread, intercept)

    def g(x: X, y: Y, eta: Pair, xi: Client) -> jax.Array:
        prior = of(x, xi)
        off = y - anchor(x, prior, xi, intercept)
        return loss(x, prior.W, y, eta.train, xi.shown, intercept) + jnp.sum(prior.penalty[None] * off**2) / (
            2 * xi.size
        )

    def sample_context(key: Key, data: Clients) -> Client:
        return context_at(random.randint(key, (), 0, data.shown.shape[0], jnp.int32), data)

    def sample_conditional(key: Key, xi: Client, data: Clients) -> Pair:
        key_train, key_test = random.split(key)
        tasks = data.tasks
        return Pair(draw(key_train, tasks.train, xi.number, batch), draw(key_test, tasks.test, xi.number, batch))

    return Problem(
        f=lambda x, y, eta, xi: loss(x, of(x, xi).W, y, eta.test, xi.shown, intercept),
        g=g,
        sample_context=sample_context,
        sample_conditional=sample_conditional,
        init_y=lambda x, xi: anchor(x, of(x, xi), xi, intercept),
        support=lambda xi, data: blocks(data.tasks, xi.number, batch),
    )


def shown_of(labels: list[np.ndarray]) -> np.ndarray:
    """`Clients.shown` from every client's training labels."""
    found = [np.unique(each) for each in labels]
    shown = np.full((len(found), max(map(len, found))), ABSENT, np.int32)
    for i, classes in enumerate(found):
        shown[i, : len(classes)] = classes
    return shown


class Scores(NamedTuple):
    """Of each client, on its held-out rows after adapting."""

    loss: jax.Array
    accuracy: jax.Array


@program(static_argnames="intercept")
def held_out_scores(problem: Problem, x: X, intercept: bool) -> Scores:
    """Adapt to every client on its training rows and score on its held-out rows."""

    def one(i: jax.Array) -> Scores:
        xi = problem.nth_context(i)
        etas, weights = problem.outcomes(xi)
        y = SOLVER(of_stack(problem, x, xi, etas, weights, 1), problem.start(x, xi)).y
        test = everything(problem.data.tasks, i).test
        W = prior_of(x, xi.centre, xi.spread, intercept).W
        logs = log_probabilities(x, W, y, xi.shown, test.features, intercept)
        right = jnp.argmax(logs, axis=1).astype(jnp.int32) == test.labels
        picked = jnp.take_along_axis(logs, test.labels[:, None], axis=1)[:, 0]
        return Scores(-jnp.sum(test.weights * picked), jnp.sum(jnp.where(right, test.weights, 0)))

    n = problem.n_contexts or 0
    return lax.map(one, jnp.arange(n, dtype=jnp.int32), batch_size=min(LANES, n))
