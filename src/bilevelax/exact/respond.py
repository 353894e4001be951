"""The follower's answer at given x and xi."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_key
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.draws import samples_of
from bilevelax.exact.sample_average import few_passes, of_all, of_stack_in_blocks, tight_solver, tightest
from bilevelax.exact.unsolved import tell
from bilevelax.problems.validate import as_arrays, check_shapes


@program(static_argnames="n")
def answered(key: Key, problem: Problem, x: X, xi: Xi, n: int) -> tuple[Y, jax.Array]:
    """(answer, solved?)."""
    start = problem.start(x, xi)
    if problem.blocks is not None:
        solution = few_passes(tightest(start))[0](of_all(problem, x, xi), start)
    else:
        average = of_stack_in_blocks(problem, x, xi, *samples_of(key, problem, xi, n))
        solution = tight_solver(start)(average, start)
    return solution.y, jnp.asarray(solution.solved)


def every_answer(problem: Problem, x: X) -> Y:
    """y*(x; xi) of every stored context, solved tightly on all of its outcomes; to be called in a program."""

    def one(i: jax.Array) -> Y:
        return answered(random.key(0), problem, x, problem.nth_context(i), 1)[0]

    return jax.vmap(one)(jnp.arange(problem.n_contexts or 0, dtype=jnp.int32))


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
    y, solved = answered(key, problem, x, xi, n)
    if problem.constraint is not None:
        require_answer("respond", xi, y, solved)
    if not isinstance(solved, jax.core.Tracer):  # inside a program nobody can be told
        tell("respond", 1 - float(solved), "its solves")
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
