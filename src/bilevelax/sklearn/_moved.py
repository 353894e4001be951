"""Where an adversary moves contexts: its best answer, or the mean of the noise that it tilts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.applications.newsvendor.rows import Rows, context_at, cost_of
from bilevelax.base.compiling import program
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.estimators.envelope import best_answers
from bilevelax.sklearn._training import Training

ANSWER_STEPS = 50  # of the adversary
NOISES = 256  # of an entropic one


def moves_of(how: Training, rows: Rows, x: X, smoothing: float) -> np.ndarray:
    """The way from each context (rows, columns), standardised; the mean over members."""
    if how.noise is None:
        y = answers(how.problem(rows), x, ANSWER_STEPS)
    else:
        y = tilted(jax.tree.map(jnp.asarray, rows), x, how.key, how.static, smoothing)
    return np.asarray(rows.reach) * np.asarray(y).mean(axis=1)


@program(static_argnames="steps")
def answers(problem: Problem, x: X, steps: int) -> Any:
    """The adversary's answers on every row of the problem."""
    rows = problem.data.contexts.shape[0]
    xi = jax.vmap(lambda i: context_at(i, problem.data))(jnp.arange(rows, dtype=jnp.int32))
    return best_answers(problem, x, xi, jax.vmap(problem.outcomes)(xi), steps)


@program(static_argnames=("static", "beta"))
def tilted(rows: Rows, x: X, key: Key, static: PyTree, beta: float) -> jax.Array:
    """E of the noise under the density e^{a c} that the entropic adversary gives it, (rows, members, columns)."""
    cost = cost_of(static, beta)
    noise = random.normal(key, (NOISES, rows.contexts.shape[1]), rows.contexts.dtype)

    def one(i: jax.Array) -> jax.Array:
        xi = context_at(i, rows)
        of_rule = lambda x: jax.vmap(lambda e: cost(x, xi.value + xi.reach * e, rows.atoms[i, 0], xi))(noise)
        return jax.nn.softmax(xi.tilt * jax.vmap(of_rule)(x), axis=1) @ noise

    return lax.map(one, jnp.arange(rows.contexts.shape[0], dtype=jnp.int32))
