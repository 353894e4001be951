"""The named rules in NumPy: orders from stored arrays, without JAX.

A rule of `policies` that has an entry here is stored, read and asked for orders without waiting for JAX; a test
compares both for every name. What has none (a user's own) is computed by `orders`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.prepare import Scaling
from bilevelax.base.threads import one_thread

WIDTH = 32  # hidden units of `mlp`
TREES, DEEPEST = 20, 6  # of `soft_forest`; 64 leaves a tree
ORDERED_AT_ONCE = 2**12  # rows at once: their activations stay in the cache
Arrays = Sequence[np.ndarray]


class StoredRule(NamedTuple):
    """Arrays in the order of the rule's fields.

    ``shapes(columns, outputs)`` are those of one member; ``orders(arrays of one member, z)`` are its standardised
    orders (rows, outputs) for standardised contexts z (rows, columns).
    """

    shapes: Callable[[int, int], list[tuple[int, ...]]]
    orders: Callable[[Arrays, np.ndarray], np.ndarray]


def linear_shapes(columns: int, outputs: int) -> list[tuple[int, ...]]:
    return [(outputs, columns), (outputs,)]


def linear_orders(arrays: Arrays, z: np.ndarray) -> np.ndarray:
    """W z + b"""
    weight, bias = arrays
    return z @ weight.T + bias


def mlp_shapes(columns: int, outputs: int) -> list[tuple[int, ...]]:
    layers = ((columns, outputs), (columns, WIDTH), (WIDTH, WIDTH), (WIDTH, outputs))
    return [shape for layer in layers for shape in linear_shapes(*layer)]


def mlp_orders(arrays: Arrays, z: np.ndarray) -> np.ndarray:
    """affine(z) + last(act(hidden(act(first(z)))))."""
    affine, first, hidden, last = (arrays[i : i + 2] for i in range(0, 8, 2))
    return linear_orders(affine, z) + linear_orders(last, _silu(linear_orders(hidden, _silu(linear_orders(first, z)))))


def _silu(a: np.ndarray) -> np.ndarray:
    """a / (1 + exp(-a)), in place of the activations; where exp(-a) overflows this is the limit 0."""
    gate = np.exp(-a)
    gate += 1
    return np.divide(a, gate, out=a)


def depth_of(columns: int) -> int:
    """Levels of a tree of `soft_forest`: ceil(log2 columns) + 1, at most 6."""
    return min(DEEPEST, math.ceil(math.log2(max(columns, 2))) + 1)


def soft_forest_shapes(columns: int, outputs: int) -> list[tuple[int, ...]]:
    nodes = 2 ** depth_of(columns) - 1
    return [(columns, TREES, nodes), (TREES, nodes), (TREES, nodes + 1, outputs), (outputs,)]


def soft_forest_orders(arrays: Arrays, z: np.ndarray) -> np.ndarray:
    """The mean over trees of leaves, each with the product of the soft splits above it."""
    slopes, offsets, leaves, constant = arrays
    left = 1 / (1 + np.exp(-(np.tensordot(z, slopes, 1) + offsets)))
    trees, nodes = offsets.shape
    share = np.ones((len(z), trees, 1), left.dtype)
    for level in range((nodes + 1).bit_length() - 1):
        here = left[:, :, 2**level - 1 : 2 ** (level + 1) - 1]
        share = np.stack([share * here, share * (1 - here)], axis=-1).reshape(len(z), trees, -1)
    return constant + np.einsum("rtl,tlo->ro", share, leaves) / trees


STORED_RULES = {
    "linear": StoredRule(linear_shapes, linear_orders),
    "mlp": StoredRule(mlp_shapes, mlp_orders),
    "soft_forest": StoredRule(soft_forest_shapes, soft_forest_orders),
}


def stored_orders(rule: StoredRule, arrays: Arrays, scaling: Scaling, contexts: np.ndarray) -> np.ndarray:
    """Mean order of the members for each context, (rows, outputs), standardised: `orders.orders` in NumPy.

    Args:
        rule: of `STORED_RULES`.
        arrays: each with the members as its first axis.
        scaling, contexts: of the columns; what lies outside the range of the training rows counts as its edge.
    """
    return np.concatenate([_block(rule, arrays, z) for z in _standardised(scaling, contexts, arrays[0].dtype)])


def _standardised(scaling: Scaling, contexts: np.ndarray, dtype: np.dtype) -> Iterator[np.ndarray]:
    scale, low, high = (np.asarray(a, dtype) for a in (scaling.scale, *map(scaling.forth, (scaling.low, scaling.high))))
    for start in range(0, len(contexts), ORDERED_AT_ONCE):
        centred = contexts[start : start + ORDERED_AT_ONCE] - scaling.centre  # before rounding: dates are large
        yield np.clip(centred.astype(dtype) / scale, low, high)


def _block(rule: StoredRule, arrays: Arrays, z: np.ndarray) -> np.ndarray:
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):  # orders that are not finite are told by who asked
        return np.mean([rule.orders([a[i] for a in arrays], z) for i in range(len(arrays[0]))], axis=0)
