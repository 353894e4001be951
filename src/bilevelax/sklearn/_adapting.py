"""A classifier for one task or client, made from the centre and its rows by Newton's method."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevelax.applications._softmax import Labelled, Pair, Sample, Tasks, proximal_problem, scaled
from bilevelax.base.compiling import program
from bilevelax.core.problem import Problem
from bilevelax.exact.newton import Solution
from bilevelax.exact.sample_average import newton_cg

TOLERANCE = 1e-4  # relative error of an adapted classifier


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A classifier for one task or client."""

    classes_: np.ndarray
    W: np.ndarray  # (classes, columns), the intercept's last
    norm: float | None
    converged: bool
    intercept: bool = False  # whether the last column of W belongs to a constant

    def decision_function(self, X: Any) -> np.ndarray:
        return features_of(X, self.norm, self.intercept) @ self.W.T

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
    n = len(rows)
    size = max(8, 1 << (n - 1).bit_length())
    weights = np.where(np.arange(size) < n, 1 / n, 0.0)
    at = np.minimum(np.arange(size), n - 1)
    dtype = jnp.zeros((), float).dtype
    sample = Sample(jnp.asarray(rows[at], dtype), jnp.asarray(labels[at], jnp.int32), jnp.asarray(weights, dtype))
    done = _adapt(_proximal(float(lam), owner), {"W": jnp.asarray(like.W)}, sample, steps)
    W, converged = np.asarray(done.y["W"]), bool(done.error <= TOLERANCE)
    if not np.isfinite(W).all():
        raise ValueError(
            f"Adapting overflowed: {owner} has weights that are not finite. Make `lam` larger or scale the columns of "
            "X."
        )
    return dataclasses.replace(like, W=W, converged=converged)
