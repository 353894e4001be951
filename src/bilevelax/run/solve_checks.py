"""What `solve` asks of what is given beside a problem, in one sentence each, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.core.problem import X
from bilevelax.diagnostics.host import flat, unflat

OWNER = "solve"
AGAIN = 1e-2  # of the way to the set: so much may a projection that iterates move a point once more
ROUNDING = 1e-5  # relative to the point: likewise


def require_projection(project: Callable[[X], X], x1: X) -> None:
    """At x1 and at a point far from it, x keeps its shape, and what was projected stays where it is.

    Else ``|x - P(x - grad F)|`` means nothing: a projection of another shape was broadcast, and certified.
    """
    if not callable(project):
        raise ValueError(f"`constraint` of {OWNER} must be a function x -> x. Got {project!r}.")
    found, wanted = (jax.tree.map(jnp.shape, x) for x in (project(x1), x1))
    if found != wanted:
        raise ValueError(f"`constraint` of {OWNER} must return an x of shape {wanted}. Got {found}.")
    begin = flat(x1)
    for x in (begin, begin + 1 + np.abs(begin)):
        once = flat(project(unflat(x, x1)))
        moved = float(np.linalg.norm(flat(project(unflat(once, x1))) - once))
        most = AGAIN * np.linalg.norm(x - once) + ROUNDING * (1 + np.linalg.norm(x))
        if moved > most:
            raise ValueError(
                f"`constraint` of {OWNER} must be a projection, which leaves points of the set where they are. "
                f"Projected a second time, a point moved by {moved:.3g}. Return the nearest point of a convex set."
            )


def require_callbacks(callbacks: Any) -> list[Callable[..., None]]:
    """As a list of functions."""
    made: list[Any] = list(callbacks) if isinstance(callbacks, Iterable) else [None]
    if not all(map(callable, made)):
        raise ValueError(f"`callbacks` of {OWNER} must be a list of functions (row, x). Got {callbacks!r}.")
    return made


def require_checkpoint(checkpoint: Any) -> None:
    if checkpoint is not None and not hasattr(checkpoint, "keeper"):
        raise ValueError(
            f"`checkpoint` of {OWNER} must be a Checkpoint, e.g. bilevelax.Checkpoint('folder'). Got {checkpoint!r}."
        )
