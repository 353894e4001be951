"""A classifier for one task or client, made from the centre and its rows by Newton's method."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevelax.applications._personal import Clients, learned_problem, mapped, shown_of
from bilevelax.applications._softmax import Labelled, Pair, Sample, Tasks, proximal_problem, scaled
from bilevelax.base.compiling import program
from bilevelax.core.problem import Problem
from bilevelax.exact.newton import Solution
from bilevelax.exact.sample_average import newton_cg, newton_solver, of_stack

TOLERANCE = 1e-4  # relative error of an adapted classifier


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A classifier for one task or client."""

    classes_: np.ndarray
    W: np.ndarray  # (classes, columns), the intercept's last
    norm: float | None
    converged: bool
    intercept: bool = False  # whether the last column of W belongs to a constant
    offset: np.ndarray | None = None  # (classes,): on top of the logits, where labels never shown are known to be rare
    network: dict[str, np.ndarray] | None = None  # "A" and "B" of a learned map of the features

    def decision_function(self, X: Any) -> np.ndarray:
        rows = features_of(X, self.norm, self.intercept)
        if self.network:
            rows = np.asarray(mapped(self.network, jnp.asarray(rows), self.intercept))
        return rows @ self.W.T + (0 if self.offset is None else self.offset)

    def predict_proba(self, X: Any) -> np.ndarray:
        scores = self.decision_function(X)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[np.argmax(self.decision_function(X), axis=1)]

    def score(self, X: Any, y: Any) -> float:
        """Accuracy."""
        return float(np.mean(self.predict(X) == np.asarray(y)))


def features_of(X: Any, norm: float | None, intercept: bool) -> np.ndarray:
    """Rows of length ``norm``, and a constant beside them where there is an intercept."""
    length = None if norm is None else float(norm)  # an integer may be too long for JAX
    rows = np.asarray(scaled(jnp.asarray(np.asarray(X), dtype=float), length, "MetaClassifier"))
    return np.concatenate([rows, np.ones((len(rows), 1), rows.dtype)], axis=1) if intercept else rows


@lru_cache(maxsize=64)
def _proximal(lam: float, owner: str) -> Problem:
    """The losses of the problem without its data: all that adapting needs, the same object for equal lam."""
    empty = Labelled(jnp.zeros((1, 1, 1), float), jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
    return proximal_problem(Tasks(empty, empty), lam=lam, batch=1, owner=owner)


@program(static_argnames="steps")
def _adapt(problem: Problem, x: Any, sample: Sample, steps: int) -> Solution:
    at = jnp.zeros((), jnp.int32)
    return newton_cg(problem, x, at, Pair(sample, sample), x, iterations=steps, tol=TOLERANCE)


def adapted(like: Adapted, lam: float, rows: np.ndarray, labels: np.ndarray, steps: int, owner: str) -> Adapted:
    """The centre ``like`` adapted to rows of features with the numbers of their classes.

    Rows are padded to a power of two, so that few programs serve all tasks.
    """
    n, at = len(rows), _padded(len(rows))
    weights = np.where(np.arange(len(at)) < n, 1 / n, 0.0)
    dtype = jnp.zeros((), float).dtype
    sample = Sample(jnp.asarray(rows[at], dtype), jnp.asarray(labels[at], jnp.int32), jnp.asarray(weights, dtype))
    done = _adapt(_proximal(float(lam), owner), {"W": jnp.asarray(like.W)}, sample, steps)
    return dataclasses.replace(like, W=_finite(np.asarray(done.y["W"]), owner), converged=bool(done.error <= TOLERANCE))


def _padded(n: int) -> np.ndarray:
    """Numbers of n rows, the last one again and again up to a power of two."""
    return np.minimum(np.arange(max(8, 1 << (n - 1).bit_length())), n - 1)


def _finite(W: np.ndarray, owner: str) -> np.ndarray:
    if not np.isfinite(W).all():
        raise ValueError(
            f"Adapting overflowed: {owner} has weights that are not finite. Make `lam` larger or scale the columns of "
            "X."
        )
    return W


@program(static_argnames="steps")
def _adapt_learned(problem: Problem, x: Any, steps: int) -> Solution:
    xi = problem.nth_context(0)
    average = of_stack(problem, x, xi, *problem.outcomes(xi), 1)
    return newton_solver(steps, tol=TOLERANCE)(average, problem.start(x, xi))


def adapted_as_learned(
    like: Adapted, x: Any, spread: np.ndarray, rows: np.ndarray, labels: np.ndarray, steps: int, owner: str
) -> Adapted:
    """The same with what was learned of adapting: the lower level of `applications._personal`.

    Classes without a row keep the centre's weights and get the learned offset.
    """
    at = _padded(len(rows))
    part = Labelled(
        jnp.asarray(rows[at][None], float), jnp.asarray(labels[at][None], jnp.int32), jnp.full(1, len(rows), jnp.int32)
    )
    classes = np.unique(labels)
    shown = shown_of([classes, np.arange(1 << (len(classes) - 1).bit_length())])[:1]
    data = Clients(
        Tasks(part, part),
        jnp.asarray(shown),
        jnp.zeros((1, *like.W.shape), float),
        jnp.zeros(1, jnp.int32),
        jnp.asarray(spread, float),
    )
    problem = learned_problem(data, batch=len(at), intercept=like.intercept)
    x = {name: jnp.asarray(value, float) for name, value in x.items()}
    done = _adapt_learned(problem, x, steps)
    W, offset = np.array(x["W"]), np.full(len(like.W), float(x["absent"]))
    W[classes], offset[classes] = np.asarray(done.y)[: len(classes)], 0.0
    network = {name: np.asarray(x[name]) for name in ("A", "B") if name in x} or None
    converged = bool(done.error <= TOLERANCE)
    return dataclasses.replace(like, W=_finite(W, owner), converged=converged, offset=offset, network=network)
