"""What diagnostics do on the host: groups of lanes, rows of gradients. In NumPy, which compiles nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.core.problem import PyTree

AT_ONCE = 8  # contexts solved at once


def in_groups(program: Callable[[PyTree], PyTree], lanes: PyTree, contexts: int) -> Any:
    """``program`` of all lanes, ``min(contexts, AT_ONCE)`` at a time, so that one program serves any number of them.

    The last group is filled up with copies of the last lane, which are thrown away.
    """
    n, width = len(jax.tree.leaves(lanes)[0]), min(contexts, AT_ONCE)
    rows = [np.minimum(np.arange(start, start + width), n - 1) for start in range(0, n, width)]
    parts = [program(jax.tree.map(lambda a: a[row], lanes)) for row in rows]  # noqa: B023 (used at once)
    return jax.tree.map(lambda *leaves: _joined(leaves)[:n], *parts)


def _joined(leaves: tuple[Any, ...]) -> Any:
    if jax.dtypes.issubdtype(leaves[0].dtype, jax.dtypes.extended):  # keys, which NumPy does not know
        return jnp.concatenate(leaves)
    return np.concatenate([np.asarray(leaf) for leaf in leaves])


def flat_rows(stacked: PyTree) -> np.ndarray:
    """(rows, d) in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(stacked)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def flat(tree: PyTree) -> np.ndarray:
    """A tree of arrays as one vector in float64."""
    return flat_rows(jax.tree.map(lambda a: np.asarray(a)[None], tree))[0]


def unflat(vector: np.ndarray, like: PyTree) -> PyTree:
    """The tree like this one that `flat` makes a vector of."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = zip(np.split(vector, ends), leaves, strict=True)
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in parts])
