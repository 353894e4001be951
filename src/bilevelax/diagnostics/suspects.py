"""Of many contexts, those in which g is least curved: where few are concave, none of a dozen may be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.base.compiling import jit_solves
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.constants import Constants, measured_at, smallest_eigenvalues
from bilevelax.diagnostics.contexts import context_number, takes_every
from bilevelax.diagnostics.host import AT_ONCE
from bilevelax.diagnostics.solved import solved
from bilevelax.exact.curvature import ritz_matrix
from bilevelax.exact.sample_average import of_stack_in_blocks
from bilevelax.problems.little import little_work

LOOKED_AT = 512  # contexts, at the start of y
OUTCOMES = 16  # of each: enough to choose by, and never judged
STEPS = 8  # of Lanczos: exact for d_y up to that


def worst(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> Constants | None:
    """`constants` of the few contexts of 512 that seem least curved, measured like any others.

    They are none of the first ``contexts`` of this key. None where those are all there are, or contexts are fed.
    """
    if takes_every(problem, contexts) or problem.source is not None:
        return None
    numbers = contexts + np.arange(LOOKED_AT, dtype=np.int32)
    least = smallest_eigenvalues(_hessians(key, problem, x, numbers))
    taken = numbers[np.argsort(np.nan_to_num(least, nan=-np.inf), kind="stable")[:AT_ONCE]]
    y = solved(key, problem, x, contexts, samples, numbers=taken).y
    return measured_at(y, problem, x, key, contexts, samples, taken)


@jit_solves(little_work)
def _hessians(key: Key, problem: Problem, x: X, numbers: jax.Array) -> jax.Array:
    """Of the mean of g over a few outcomes, where the follower starts: `ritz_matrix` in each context."""

    def one(i: jax.Array) -> jax.Array:
        xi = context_number(i, key, problem, every=False)
        key_eta, key_r = (random.fold_in(random.fold_in(key, i), role) for role in (4, 5))
        etas, y = problem.conditionals(key_eta, xi, OUTCOMES), problem.start(x, xi)
        average = of_stack_in_blocks(problem, x, xi, etas, jnp.full(OUTCOMES, 1 / OUTCOMES))
        return ritz_matrix(average.hess_g(y), y, key_r, STEPS)

    return lax.map(one, numbers)
