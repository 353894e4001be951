"""How likely each level of `antithetic_mlmc` is, its draw, and where its groups begin."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.problem import Key


def level_probabilities(levels: int, correction_rate: float, exponent: float, factor: int = 2) -> tuple[float, ...]:
    """p_0 = 1 - r, and p_l proportional to factor^{-exponent l} with sum r for l = 1..levels."""
    p = float(factor) ** (-exponent * np.arange(1, levels + 1))
    return (1 - correction_rate, *(correction_rate * p / p.sum()).tolist())


def draw_level(key: Key, probabilities: tuple[float, ...]) -> jax.Array:
    """l with probability p_l, by one coin for each level passed: exact far beyond the resolution of one uniform."""
    beyond = np.cumsum(probabilities[::-1])[::-1]  # P(level >= l)
    stop = jnp.asarray([p / q for p, q in zip(probabilities, beyond, strict=True)], dtype=float)
    last = len(probabilities) - 1

    def passed(level: jax.Array) -> jax.Array:
        return (level < last) & (random.uniform(random.fold_in(key, level), dtype=float) >= stop[level])

    return lax.while_loop(passed, lambda level: level + 1, jnp.zeros((), jnp.int32))


def group_starts(size: Any, part: Any, factor: int) -> jax.Array:
    """Where ``factor`` groups of ``part`` samples begin, spread evenly over ``size``; no product exceeds 32 bits."""
    groups = jnp.arange(factor, dtype=jnp.int32)
    step, rest = jnp.divmod(jnp.asarray(size - part, jnp.int32), factor - 1)
    return step * groups + rest * groups // (factor - 1)
