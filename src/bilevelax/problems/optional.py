"""Parts that a problem may have besides, `support`, `guess` and `context_at`: do they return what the others do?"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevelax.core.problem import Eta, Problem, PyTree, X
from bilevelax.problems.traced import traced
from bilevelax.problems.validate import Shapes, alike, describe


def check_optional(problem: Problem, x: X, shapes: Shapes) -> None:
    """Parts that a problem may have besides return what the others do."""
    if problem.support is not None:
        _check_support(traced("support", lambda xi, p: p.outcomes(xi), shapes.xi, problem), shapes.eta)
    if problem.guess is not None:
        guess = traced("guess", lambda x, xi, p: p.guess(x, xi, p.data), x, shapes.xi, problem)
        _require_alike("guess", "y, as init_y does", guess, shapes.y)
    if problem.n_contexts is not None:
        number = jax.ShapeDtypeStruct((), jnp.int32)
        numbered = traced("context_at", lambda i, p: p.nth_context(i), number, problem)
        _require_alike("context_at", "xi, as sample_context does", numbered, shapes.xi)


def _require_alike(name: str, what: str, found: PyTree, wanted: PyTree) -> None:
    if not alike(found, wanted):
        raise ValueError(f"`{name}` of Problem must return {what}: {describe(wanted)}. Got {describe(found)}.")


def _check_support(found: Any, eta: Eta) -> None:
    """(etas, weights): outcomes with one weight each."""
    if not isinstance(found, tuple) or len(found) != 2 or not all(leaf.shape for leaf in jax.tree.leaves(found)):
        told = describe(found)
        raise ValueError(f"`support` of Problem must return a pair (etas, weights) of stacked arrays. Got {told}.")
    etas, weights = found
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(found)}
    if len(rows) != 1 or not isinstance(weights, jax.ShapeDtypeStruct) or len(weights.shape) != 1:
        raise ValueError(f"`support` of Problem must return one weight for each outcome. Got {describe(found)}.")
    first = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), etas)
    if not alike(first, eta):
        raise ValueError(
            f"`support` of Problem must return stacked outcomes like those of sample_conditional, {describe(eta)}. "
            f"Got a stack of {describe(first)}."
        )
