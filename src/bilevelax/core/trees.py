"""What `optax.tree` lacks: scalars that take the dtype of the leaf they multiply."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bilevelax.core.problem import PyTree


def scale(scalar: Any, tree: PyTree) -> PyTree:
    """scalar * tree; a float64 scalar leaves float32 leaves as they are."""
    return jax.tree.map(lambda a: jnp.asarray(scalar, a.dtype) * a, tree)


def add_scale(tree: PyTree, scalar: Any, other: PyTree) -> PyTree:
    """tree + scalar * other, likewise."""
    return jax.tree.map(lambda a, b: a + jnp.asarray(scalar, a.dtype) * b, tree, other)
