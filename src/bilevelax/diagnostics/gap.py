"""How much of what the lower level has to gain do some answers leave? Against exact responses, or neighbours'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.compiling import jit_once
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.diagnostics.bias import Bias
from bilevelax.diagnostics.solved import solved
from bilevelax.exact.newton import UNSOLVED
from bilevelax.problems.on_disk import Rows, matrix
from bilevelax.problems.stored import Stored

NORMAL = 1.96  # of a 95 % interval
CONTEXTS, SAMPLES = 64, 512  # of exact responses
JUDGED = 256  # rows that neighbours answer for, at most

Answer = Callable[[Xi], Y]


def relative_gap(ours: np.ndarray, best: np.ndarray, start: np.ndarray) -> Bias:
    """The mean of g above the best one's, relative to all that is gained from the start; open where nothing is."""
    gained = float(np.mean(start - best))
    if not gained > 0:
        return Bias(float("nan"), 0.0, float("inf"))
    gap = (ours - best) / gained
    mean, error = float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))
    return Bias(*(max(each, 0.0) for each in (mean, mean - NORMAL * error, mean + NORMAL * error)))


def gap_to_exact(problem: Problem, x: X, answer: Answer, key: Key) -> Bias:
    """Of ``answer(xi) -> y`` to y*(x; xi), solved exactly in some contexts and judged there on fresh draws of eta."""
    key_y, key_g = random.split(key)
    exact = solved(key_y, problem, x, CONTEXTS, SAMPLES, answers_only=True)

    @jit_once()
    def judged(problem: Problem, xis: Xi, ys: Y) -> tuple[Any, ...]:
        def one(xi: Xi, y: Y, key: Key) -> tuple[Any, ...]:
            etas = problem.conditionals(key, xi, SAMPLES)
            return tuple(mean_g(problem, x, each, etas, xi) for each in (answer(xi), y, problem.start(x, xi)))

        return jax.vmap(one)(xis, ys, random.split(key_g, len(exact.left)))

    return relative_gap(*(np.asarray(a, np.float64) for a in judged(problem, exact.xi, exact.y)))


def mean_g(problem: Problem, x: X, y: Y, etas: Eta, xi: Xi) -> jax.Array:
    return jnp.mean(jax.vmap(lambda eta: problem.g(x, y, eta, xi))(etas))


def neighbours_answers(pairs: Problem, x: X, fitted: np.ndarray, judged: np.ndarray) -> Y | None:
    """Answers for some rows of a problem of pairs, each the best on its nearest fitted rows; None where there is none.

    No basis restricts them. They are those of k = sqrt(n) neighbours, far away in many coordinates.
    """
    from scipy.spatial import cKDTree  # its import takes longer than it does here

    Z = matrix(pairs.data.contexts)
    Z = Z / np.where(Z.std(axis=0) > 0, Z.std(axis=0), 1.0)
    k = max(2, round(len(fitted) ** 0.5))
    near = fitted[cKDTree(Z[fitted]).query(Z[judged], k)[1]]
    rows: Rows = pairs.data
    contexts = jax.tree.map(lambda a: a[judged], rows.contexts)
    outcomes = jax.tree.map(lambda a: a[near], rows.outcomes)
    problem = pairs.replace(
        data=Rows(contexts, outcomes),
        n_contexts=len(judged),
        sample_conditional=lambda key, xi, data: _of(data, xi.row, random.randint(key, (), 0, k)),
        support=lambda xi, data: (_of(data, xi.row), jnp.full(k, 1 / k)),
    )
    found = solved(random.key(0), problem, x, len(judged), k, answers_only=True)
    return None if np.max(found.left) > UNSOLVED else found.y


def _of(data: Rows, *where: Any) -> Eta:
    return jax.tree.map(lambda a: a[where], data.outcomes)


def losses_on_rows(pairs: Problem, x: X, rows: np.ndarray, ys: Y) -> np.ndarray:
    """g on some rows of a problem of pairs, with these answers."""
    xis: Stored = jax.vmap(pairs.nth_context)(jnp.asarray(rows, jnp.int32))
    etas = jax.tree.map(lambda a: a[rows], pairs.data.outcomes)
    return np.asarray(jax.vmap(lambda y, eta, xi: pairs.g(x, y, eta, xi))(ys, etas, xis), np.float64)


def starts_on_rows(pairs: Problem, x: X, rows: np.ndarray) -> Y:
    return jax.vmap(lambda i: pairs.start(x, pairs.nth_context(i)))(jnp.asarray(rows, jnp.int32))
