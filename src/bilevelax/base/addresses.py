"""Contexts addressed by their keys: a key's tag finds the context that belongs to it in a table."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

Key: TypeAlias = Any
PyTree: TypeAlias = Any
Xi: TypeAlias = Any


def tag(key: Key) -> jax.Array:
    """The address of a context: two words of random bits."""
    return random.bits(key, (2,), jnp.uint32)


def as_numbers(tags: Any) -> np.ndarray:
    """Tags as unsigned 64-bit integers."""
    words = np.asarray(tags).astype(np.uint64)
    return (words[..., 0] << np.uint64(32)) | words[..., 1]


def find(key: Key, tags: jax.Array, contexts: PyTree) -> Xi:
    """The context of this key; not a number where it is not there, so that nobody takes another for it."""
    same = jnp.all(tags == tag(key)[None], axis=1)
    row = jnp.argmax(same)

    def pick(a: jax.Array) -> jax.Array:
        return jnp.where(same[row], a[row], jnp.nan) if jnp.issubdtype(a.dtype, jnp.floating) else a[row]

    return jax.tree.map(pick, contexts)
