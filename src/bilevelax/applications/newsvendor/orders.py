"""Orders for many contexts: one compiled program over blocks of rows."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevelax.applications.newsvendor.loss import newsvendor_cost
from bilevelax.applications.newsvendor.padding import bucket, padded
from bilevelax.applications.newsvendor.policies import cached_by_structure
from bilevelax.applications.newsvendor.prepare import Prepared, Scaling, WeightedDemands
from bilevelax.applications.newsvendor.stored_rules import STORED_RULES, stored_orders
from bilevelax.base.compiling import program
from bilevelax.core.problem import PyTree, X

ORDERED_AT_ONCE = 2**13  # rows at once: the activations of one member stay in the cache
IN_NUMPY = 2**11  # rows


def orders(static: PyTree, x: X, scaling: Scaling, contexts: np.ndarray) -> np.ndarray:
    """Mean order of the members for each context, (rows, outputs), standardised.

    What lies outside the range of the training rows counts as its edge: a rule does not extrapolate.
    """
    mean_order = _mean_order(static)
    dtype = jax.tree.leaves(x)[0].dtype
    ends = [np.asarray(a, dtype) for a in (scaling.scale, *(scaling.forth(a) for a in (scaling.low, scaling.high)))]
    parts, waiting = [], None
    for start in range(0, len(contexts), ORDERED_AT_ONCE):
        part = contexts[start : start + ORDERED_AT_ONCE]
        centred = np.empty(part.shape, dtype)  # fresh: the program may read it where it lies
        np.subtract(part, scaling.centre, out=centred, casting="same_kind")  # before rounding: dates are large
        made = mean_order(x, padded(centred, min(bucket(len(part), 2**9), ORDERED_AT_ONCE)), *ends), len(part)
        if waiting:  # one block is prepared while another is computed
            parts.append(np.asarray(waiting[0])[: waiting[1]])
        waiting = made
    if waiting:
        parts.append(np.asarray(waiting[0])[: waiting[1]])
    return np.concatenate(parts)


def placed_orders(policy: Any, static: PyTree, x: X, prepared: Prepared, contexts: np.ndarray) -> np.ndarray:
    """Orders in units of demand; of a named rule for few rows in NumPy, which has no program to wait for."""
    if isinstance(policy, str) and policy in STORED_RULES and len(contexts) <= IN_NUMPY:
        arrays = [np.asarray(a) for a in jax.tree.leaves(x)]
        return prepared.demands.back(stored_orders(STORED_RULES[policy], arrays, prepared.contexts, contexts))
    return prepared.demands.back(orders(static, x, prepared.contexts, contexts))


def mean_cost(policy: Any, static: PyTree, x: X, prepared: Prepared, sample: WeightedDemands) -> float:
    """Mean true cost of a row."""
    placed = placed_orders(policy, static, x, prepared, sample.X)
    costs = newsvendor_cost(placed, sample.y, sample.holding, sample.backlog).sum(axis=1)
    return float(np.average(costs, weights=sample.weights))


@cached_by_structure
def _mean_order(static: PyTree) -> Any:
    @program()
    def mean_order(x: X, centred: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        z = jnp.clip(centred / scale[None], low[None], high[None])
        # member by member: all at once would not stay in the cache
        return jnp.mean(lax.map(lambda x: jax.vmap(eqx.combine(x, static))(z), x), axis=0)

    return mean_order
