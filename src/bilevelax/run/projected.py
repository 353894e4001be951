"""Constraints on x for any optax optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax
from optax import tree

from bilevelax.core.problem import X


def projected(optimizer: optax.GradientTransformation, projection: Callable[[X], X]) -> optax.GradientTransformation:
    """The optimizer followed by ``projection(x)``, e.g. one of `optax.projections`, after each step.

    The update is projection(x + u) - x, so iterates are in the set up to rounding.
    """

    def update(grad: Any, state: Any, x: X = None, **extra: Any) -> tuple[Any, Any]:
        updates, state = optax.with_extra_args_support(optimizer).update(grad, state, x, **extra)
        return tree.sub(projection(optax.apply_updates(x, updates)), x), state

    return optax.GradientTransformationExtraArgs(optimizer.init, update)
