"""Softmax regression with a proximal lower level: what meta-learning and personalised learning share.

A context is the number of a task (a client). Its outcome is the pair of a training and a test
sample, of which the lower level reads the first and the upper level the second, eq. (9):

    g = CE(y; train) + lam/2 |y - x|^2,    f = CE(y; test)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from optax import tree

from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.sample_average import newton_cg

LANES = 32  # tasks adapted at once by `adapted_scores`


class Labelled(NamedTuple):
    """Labelled rows of every task: padded to the longest, or packed one task after the other."""

    features: jax.Array  # (tasks, rows, d); packed: (rows of all tasks, d)
    labels: jax.Array  # (tasks, rows); packed: (rows of all tasks,)
    counts: jax.Array  # rows of each task that are data
    starts: jax.Array | None = None  # packed: the first row of each task
    numbers: jax.Array | None = None  # packed: 0, 1, ... for the rows of the longest task, whose number is static

    @property
    def longest(self) -> int:
        return self.labels.shape[1] if self.numbers is None else self.numbers.shape[0]

    def rows(self, i: Any, j: Any) -> tuple[jax.Array, jax.Array]:
        """(features, labels) of the rows j of task i."""
        at = (i, j) if self.starts is None else self.starts[i] + j.astype(self.starts.dtype)
        return self.features[at], self.labels[at]

    def first(self, n: int) -> Labelled:
        """The first n tasks."""
        if self.starts is None:
            return jax.tree.map(lambda a: a[:n], self)
        rows = int(self.starts[n - 1] + self.counts[n - 1])
        return Labelled(self.features[:rows], self.labels[:rows], self.counts[:n], self.starts[:n], self.numbers)


class Tasks(NamedTuple):
    """The data leaves of these problems."""

    train: Labelled
    test: Labelled


class Sample(NamedTuple):
    """Weighted rows of one task; the weights add up to 1."""

    features: jax.Array
    labels: jax.Array
    weights: jax.Array


class Pair(NamedTuple):
    """eta: a training and a test sample."""

    train: Sample
    test: Sample


def cross_entropy(y: Y, sample: Sample) -> jax.Array:
    """Weighted multi-class logistic loss of the linear classifier y["W"], of shape (classes, d)."""
    logits = sample.features @ y["W"].T
    picked = jnp.take_along_axis(logits, sample.labels[:, None], axis=1)[:, 0]
    return jnp.sum(sample.weights * (jax.nn.logsumexp(logits, axis=1) - picked))


def accuracy(y: Y, sample: Sample) -> jax.Array:
    """Weighted share of the rows whose largest logit is their label's."""
    guess = jnp.argmax(sample.features @ y["W"].T, axis=1).astype(sample.labels.dtype)
    return jnp.sum(jnp.where(guess == sample.labels, sample.weights, 0.0))


def draw(key: Key, rows: Labelled, i: Any, batch: int) -> Sample:
    """``batch`` rows of task i, with replacement."""
    j = random.randint(key, (batch,), 0, rows.counts[i])
    return Sample(*rows.rows(i, j), jnp.full(batch, 1 / batch, rows.features.dtype))


def everything(tasks: Tasks, i: Any) -> Pair:
    """All data of task i as one outcome: at it, g and f are their own expectations."""

    def whole(rows: Labelled) -> Sample:
        j = jnp.arange(rows.longest, dtype=jnp.int32)
        mask = (j < rows.counts[i]).astype(rows.features.dtype)
        weights = mask / rows.counts[i].astype(mask.dtype)
        return Sample(
            *rows.rows(i, slice(None) if rows.starts is None else jnp.minimum(j, rows.counts[i] - 1)), weights
        )

    return Pair(whole(tasks.train), whole(tasks.test))


def blocks(tasks: Tasks, i: Any, batch: int) -> tuple[Pair, jax.Array]:
    """All data of task i cut into outcomes of ``batch`` rows, equally likely: expectations are those of the draws.

    Training and test rows may differ in number, so the rows carry the weights: those of one block
    add up to 1 on average over blocks, and padding has none.
    """
    n = -(-max(rows.longest for rows in tasks) // batch)

    def cut(rows: Labelled) -> Sample:
        j = jnp.arange(n * batch, dtype=jnp.int32)
        there = (j < rows.counts[i]).astype(rows.features.dtype)
        weights = n * there / rows.counts[i].astype(there.dtype)
        last = rows.longest if rows.starts is None else rows.counts[i]
        whole = Sample(*rows.rows(i, jnp.minimum(j, last - 1)), weights)
        return jax.tree.map(lambda a: a.reshape(n, batch, *a.shape[1:]), whole)

    return Pair(cut(tasks.train), cut(tasks.test)), jnp.full(n, 1 / n, float)


def proximal_problem(tasks: Tasks, *, lam: float, batch: int, owner: str) -> Problem:
    """Eq. (9) on these tasks, all equally likely, with mu_g = lam and L_g1 = lam + max |a|^2 / 2.

    The Hessian of the loss at a row a is (diag(p) - p p') x a a', and diag(p) - p p' has no
    eigenvalue above 1/2.
    """
    require_positive("lam", owner, lam)
    require_integer("batch", owner, batch, 1)
    return _proximal(float(lam), batch).replace(
        data=tasks,
        L_g1=lam + float(jnp.max(jnp.sum(tasks.train.features**2, axis=-1))) / 2,
        n_contexts=int(tasks.train.counts.shape[0]),
        context_at=_number,
    )


def _number(i: jax.Array, data: Tasks) -> jax.Array:
    return jnp.asarray(i, jnp.int32)


@lru_cache(maxsize=64)
def _proximal(lam: float, batch: int) -> Problem:
    """The same functions for equal settings, so that compiled programs serve the next fit."""

    def g(x: X, y: Y, eta: Pair, xi: Xi) -> jax.Array:
        return cross_entropy(y, eta.train) + lam / 2 * tree.norm(tree.sub(y, x), squared=True)

    def sample_conditional(key: Key, xi: Xi, data: Tasks) -> Pair:
        key_train, key_test = random.split(key)
        return Pair(draw(key_train, data.train, xi, batch), draw(key_test, data.test, xi, batch))

    return Problem(
        f=lambda x, y, eta, xi: cross_entropy(y, eta.test),
        g=g,
        sample_context=lambda key, data: random.randint(key, (), 0, data.train.counts.shape[0], jnp.int32),
        sample_conditional=sample_conditional,
        init_y=lambda x, xi: x,
        mu_g=lam,
        support=lambda xi, data: blocks(data, xi, batch),
    )


class Scores(NamedTuple):
    """Test results of every task."""

    loss: jax.Array  # after adaptation
    accuracy: jax.Array
    centre_loss: jax.Array  # of x itself


@program()
def adapted_scores(problem: Problem, x: X) -> Scores:
    """Adapt x to every task on all its training data, tightly, and score it on all its test data.

    Deterministic, and the same whatever method found x.
    """

    def one(i: jax.Array) -> Scores:
        eta = everything(problem.data, i)
        y = newton_cg(problem, x, i, eta, problem.start(x, i), tol=1e-6).y
        return Scores(cross_entropy(y, eta.test), accuracy(y, eta.test), cross_entropy(x, eta.test))

    n = problem.data.train.counts.shape[0]
    room = max(part.labels.size // part.longest for part in problem.data)  # tasks of the longest's size in the data
    lanes = max(d for d in range(1, min(LANES, room) + 1) if n % d == 0)  # a remainder would be compiled again
    return lax.map(one, jnp.arange(n, dtype=jnp.int32), batch_size=lanes)


def scaled(features: jax.Array, norm: float | None, owner: str) -> jax.Array:
    """Rows brought to Euclidean length ``norm``; None leaves them alone."""
    require_positive("norm", owner, norm, optional=True)
    if norm is None:
        return features
    lengths = jnp.sqrt(jnp.sum(features**2, axis=-1, keepdims=True))
    return norm * features / jnp.where(lengths > 0, lengths, 1)


def centre(classes: int, d: int) -> X:
    """x = 0: all classes equally likely."""
    return {"W": jnp.zeros((classes, d), float)}
