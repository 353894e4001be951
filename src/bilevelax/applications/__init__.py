"""Ready-made problems, one file each. A new file with a function `make` is found by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bilevelax.discovery import Catalogue

if TYPE_CHECKING:  # `bilevelax list` reads names alone and does not wait for JAX
    from bilevelax.core.problem import Problem, X

catalogue = Catalogue(__name__, "application", factory="make")


class Application(NamedTuple):
    """A problem, where to start, and what to report at x."""

    problem: Problem
    x1: X
    metrics: Callable[[X], dict[str, float]]
