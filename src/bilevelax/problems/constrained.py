"""Does the set that y is chosen from fit the problem?"""

from __future__ import annotations

import jax

from bilevelax.core.problem import Problem, X, Xi, Y
from bilevelax.problems.validate import alike, describe


def check_constraint(problem: Problem, x: X, y: Y, xi: Xi) -> None:
    """A set whose numbers fit y; its own sentences say what does not."""
    if not hasattr(problem.constraint, "land"):
        raise ValueError(
            f"`constraint` of Problem must be a set: bx.box(...), bx.simplex(...), bx.ball(...), bx.affine(...), "
            f"bx.polyhedron(...) or bx.product(...). Got {problem.constraint!r}."
        )
    try:
        landed, _ = jax.eval_shape(lambda x, y, xi, p: p.land(x, y, xi), x, y, xi, problem)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"`constraint` of Problem failed: {type(error).__name__}: {str(error).splitlines()[0]} Its functions are "
            "called as (x, xi), A as (xi), and must run under jax.jit."
        ) from error
    if not alike(landed, y):
        raise ValueError(f"`constraint` of Problem must keep y like {describe(y)}. Got {describe(landed)}.")
