"""Contexts that live on disk: read ahead by the host, addressed by their keys, handed to the compiled steps.

A step asks for the contexts of keys that it derives from (key, t), so the host can tell beforehand
which ones. It reads them while the steps before are running, and the compiled program finds each
by its tag, 64 bits drawn from its key. Numbers are those of a problem with all contexts in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.problem import Key, PyTree, Xi


class Source(NamedTuple):
    """Where contexts come from: ``read(tags) -> stacked contexts``, NumPy in, NumPy out."""

    read: Callable[[np.ndarray], PyTree]
    digest: str  # of what is stored there


class Fed(NamedTuple):
    """The data leaves of a problem during one step: the contexts that it will ask for."""

    tags: Any  # (contexts, 2)
    contexts: PyTree


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


class Feeder:
    """Reads the contexts of ``every`` steps at a time, one chunk ahead.

    Args:
        source: where they come from.
        keys: ``t -> the stacked keys of the contexts of step t``.
        every: steps of a chunk.
        columns: which contexts of a step this process reads, and how they become arrays of a mesh;
            by default all, on one device.
    """

    def __init__(
        self,
        source: Source,
        keys: Callable[[jax.Array], Key],
        every: int,
        columns: Any = None,
    ) -> None:
        self.source, self.every, self.columns = source, every, columns
        self.tags = jax.jit(jax.vmap(lambda t: jax.vmap(tag)(keys(t))))
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="contexts")
        self.ahead: dict[int, Future[Fed]] = {}

    def after(self, t: int) -> Fed:
        """The contexts of the steps t + 1, ..., t + every, stacked."""
        kept = {start: self.ahead.get(start) or self.thread.submit(self._read, start) for start in (t, t + self.every)}
        self.ahead = kept
        return kept[t].result()

    def _read(self, t: int) -> Fed:
        tags = np.asarray(self.tags(t + 1 + jnp.arange(self.every, dtype=jnp.int32)))
        n = tags.shape[1]
        tags = tags[:, self.columns.mine(n)] if self.columns else tags
        contexts = self.source.read(as_numbers(tags).ravel())
        stacked = jax.tree.map(lambda a: np.asarray(a).reshape(*tags.shape[:2], *a.shape[1:]), contexts)
        place = partial(self.columns.place, n=n) if self.columns else jnp.asarray
        return jax.tree.map(place, Fed(tags, stacked))

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)


def at_step(feed: PyTree, i: Any) -> PyTree:
    """What the chunk's step number i needs of it."""
    return jax.tree.map(partial(jax.lax.dynamic_index_in_dim, index=i, axis=0, keepdims=False), feed)
