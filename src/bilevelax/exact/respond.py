"""The follower's answer at given x and xi, and the leader's expected cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree

from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_key, require_share
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.draws import samples_of
from bilevelax.exact.sample_average import ROWS_A_BLOCK, of_stack_in_blocks, tight_solver
from bilevelax.problems.validate import as_arrays, check_shapes

EVALUATED_AT_ONCE = 32  # contexts solved at once by `evaluate`
ROWS_AT_ONCE = 16_384  # samples that they add up at once


@program(static_argnames="n")
def _respond(key: Key, problem: Problem, x: X, xi: Xi, n: int) -> tuple[Y, jax.Array]:
    """(answer, solved?)."""
    start = problem.start(x, xi)
    average = of_stack_in_blocks(problem, x, xi, *samples_of(key, problem, xi, n))
    solution = tight_solver(start)(average, start)
    return solution.y, jnp.asarray(solution.solved)


def respond(problem: Problem, x: X, xi: Xi, *, key: Key, n: int = 4096) -> Y:
    """y*(x; xi), eq. (2): the minimiser of the mean of g over n draws of eta, solved tightly.

    The error left is that of the sample average, of order 1/sqrt(n); none where g has no noise.
    Where the outcomes of a context are a finite set that the problem knows, all of them are used
    and the answer is exact, whatever n.
    """
    require_key("respond", key)
    require_integer("n", "respond", n, 1)
    x = as_arrays("x", "respond", x)
    check_shapes(problem, x)
    y, solved = _respond(key, problem, x, xi, n)
    if problem.constraint is not None:
        require_answer("respond", xi, y, solved)
    return y


def require_answer(owner: str, xi: Xi, y: Y, solved: Any) -> None:
    """An answer of a follower with a constraint, or a sentence that names the context without one."""
    if not all(bool(jnp.all(jnp.isfinite(a))) for a in jax.tree.leaves(y)):
        raise ValueError(
            f"{owner} found no y in the problem's `constraint`: the set is empty, or g is not finite, at this x and "
            f"xi = {xi}. Widen the bounds there."
        )
    if not bool(solved):
        raise ValueError(
            f"{owner} found no minimum of g on the problem's `constraint` at xi = {xi}: g may be unbounded below. "
            "See `check`."
        )


class Evaluation(NamedTuple):
    """F(x) with its confidence interval."""

    mean: float
    low: float
    high: float
    stderr: float
    n: int


@program(static_argnames=("n", "samples"))
def _costs(key: Key, problem: Problem, x: X, n: int, samples: int) -> tuple[jax.Array, jax.Array]:
    """Of each context: (cost, was its follower solved?)."""

    def one(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_xi, key_y, key_f = random.split(random.fold_in(key, i), 3)
        xi = problem.context(key_xi)
        y, solved = _respond(key_y, problem, x, xi, samples)
        paid = problem.conditionals(key_f, xi, samples), jnp.full(samples, 1 / samples)
        return of_stack_in_blocks(problem, x, xi, *paid).f(y), solved & jnp.all(jnp.isfinite(ravel_pytree(y)[0]))

    return lax.map(one, jnp.arange(n), batch_size=min(n, EVALUATED_AT_ONCE, ROWS_AT_ONCE // min(samples, ROWS_A_BLOCK)))


def evaluate(problem: Problem, x: X, *, key: Key, n: int = 1000, samples: int = 256, level: float = 0.95) -> Evaluation:
    """F(x), eq. (1), from n contexts, each answered and paid on ``samples`` fresh draws of eta.

    The interval is the normal one for the mean over contexts; the answers' own error, of order
    1/samples in F, is not in it.
    """
    require_key("evaluate", key)
    require_integer("n", "evaluate", n, 2)
    require_integer("samples", "evaluate", samples, 1)
    require_share("level", "evaluate", level)
    x = as_arrays("x", "evaluate", x)
    check_shapes(problem, x)
    paid, solved = _costs(key, problem, x, n, samples)
    if problem.constraint is not None and not np.all(solved):
        key_xi, key_y, _ = random.split(random.fold_in(key, int(np.argmin(solved))), 3)
        xi = problem.context(key_xi)
        require_answer("evaluate", xi, _respond(key_y, problem, x, xi, samples)[0], False)
    costs = np.asarray(paid, np.float64)
    mean, stderr = float(costs.mean()), float(costs.std(ddof=1) / np.sqrt(n))
    z = float(jax.scipy.stats.norm.ppf((1 + level) / 2))
    return Evaluation(mean, mean - z * stderr, mean + z * stderr, stderr, n)
