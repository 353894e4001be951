"""Orders for many contexts: one compiled program over blocks of rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevelax.problem import PyTree, X
from bilevelax.sklearn._prepare import Prepared, Sample, Scaling
from bilevelax.sklearn._problem import bucket, padded
from bilevelax.sklearn.costs import newsvendor_cost

BLOCK = 2**13  # rows at once: the activations of one member stay in the cache


def orders(static: PyTree, x: X, scaling: Scaling, contexts: np.ndarray) -> np.ndarray:
    """Mean order of the members for each context, (rows, outputs), standardised.

    What lies outside the range of the training rows counts as its edge: a rule does not extrapolate.
    """
    leaves, structure = jax.tree.flatten(static)
    program = _program(tuple(leaves), structure)
    dtype = jax.tree.leaves(x)[0].dtype
    ends = [np.asarray(a, dtype) for a in (scaling.scale, *(scaling.forth(a) for a in (scaling.low, scaling.high)))]
    parts, waiting = [], None
    for start in range(0, len(contexts), BLOCK):
        part = contexts[start : start + BLOCK]
        centred = np.empty(part.shape, dtype)  # fresh: the program may read it where it lies
        np.subtract(part, scaling.centre, out=centred, casting="same_kind")  # before rounding: dates are large
        made = program(x, padded(centred, min(bucket(len(part), 2**9), BLOCK)), *ends), len(part)
        if waiting:  # one block is prepared while another is computed
            parts.append(np.asarray(waiting[0])[: waiting[1]])
        waiting = made
    if waiting:
        parts.append(np.asarray(waiting[0])[: waiting[1]])
    return np.concatenate(parts)


def mean_cost(static: PyTree, x: X, prepared: Prepared, sample: Sample) -> float:
    """Mean true cost of a row."""
    placed = prepared.demands.back(orders(static, x, prepared.contexts, sample.X))
    costs = newsvendor_cost(placed, sample.y, sample.holding, sample.backlog).sum(axis=1)
    return float(np.average(costs, weights=sample.weights))


def _program(leaves: tuple[Any, ...], structure: Any) -> Any:
    try:
        return _mean_order(leaves, structure)
    except TypeError:  # unhashable parts
        return _mean_order.__wrapped__(leaves, structure)


@lru_cache(maxsize=256)
def _mean_order(leaves: tuple[Any, ...], structure: Any) -> Any:
    static = jax.tree.unflatten(structure, leaves)

    @jax.jit
    def mean_order(x: X, centred: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        z = jnp.clip(centred / scale[None], low[None], high[None])
        # member by member: all at once would not stay in the cache
        return jnp.mean(lax.map(lambda x: jax.vmap(eqx.combine(x, static))(z), x), axis=0)

    return mean_order
