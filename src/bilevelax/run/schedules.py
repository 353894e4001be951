"""Step-size schedules that optax does not have."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

from bilevelax.base.errors import require_integer, require_positive


def sqrt_then_linear(t0: int, scale: float = 1.0) -> optax.Schedule:
    """The paper's rule: scale / sqrt(t) for t <= t0, then scale / t, with t = count + 1.

    Note the jump from 1/sqrt(t0) to 1/t0 after t0; it is the paper's.
    """
    require_integer("t0", "sqrt_then_linear", t0, 1)
    require_positive("scale", "sqrt_then_linear", scale)

    return lambda count: scale * sqrt_then_linear_size(count, t0)


def sqrt_then_linear_size(count: Any, t0: Any) -> Any:
    """1 / sqrt(t) for t <= t0, then 1 / t, with t = count + 1; t0 may be traced."""
    t = jnp.asarray(count, dtype=float) + 1
    return jnp.where(t <= t0, 1 / jnp.sqrt(t), 1 / t)
