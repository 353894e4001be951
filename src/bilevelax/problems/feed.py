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
from jax import lax

from bilevelax.base.addresses import as_numbers, tag
from bilevelax.core.problem import Key, PyTree


class Packed(NamedTuple):
    """Contexts of different sizes without padding: where each one's rows lie among all rows, which are stored once."""

    places: PyTree  # (contexts, ...), or (steps, contexts, ...)
    rows: PyTree  # (room, ...)


class Source(NamedTuple):
    """Where contexts come from: ``read(tags) -> stacked contexts``, NumPy in, NumPy out.

    ``pack(tags, room)`` gives them packed, with room for at least so many rows; ``tell(tags)`` says which they are.
    """

    read: Callable[[np.ndarray], PyTree]
    digest: str  # of what is stored there
    pack: Callable[[np.ndarray, int], Packed] | None = None
    tell: Callable[[np.ndarray], str] | None = None


class Fed(NamedTuple):
    """The data leaves of a problem during one step: the contexts that it will ask for. Of many steps, stacked."""

    tags: Any  # (contexts, 2)
    contexts: PyTree

    def of_step(self, i: Any) -> Fed:
        """The contexts of step i of many; packed rows belong to all of them."""
        row = partial(lax.dynamic_index_in_dim, index=i, axis=0, keepdims=False)
        if isinstance(self.contexts, Packed):
            return Fed(row(self.tags), Packed(jax.tree.map(row, self.contexts.places), self.contexts.rows))
        return jax.tree.map(row, self)


class Feeder:
    """Reads the contexts of ``every`` steps at a time, one chunk ahead.

    Args:
        source: where they come from.
        keys: ``t -> the stacked keys of the contexts of step t``.
        every: steps of a chunk.
        columns: which contexts of a step this process reads, and how they become arrays of a mesh;
            by default all, on one device, packed where the source can.
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
        self.room = 0  # rows of packed contexts; where it grows, the steps are compiled again
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="contexts")
        self.ahead: dict[int, Future[Fed]] = {}

    def after(self, t: int) -> Fed:
        """The contexts of the steps t + 1, ..., t + every, stacked."""
        kept = {start: self.ahead.get(start) or self.thread.submit(self._read, start) for start in (t, t + self.every)}
        self.ahead = kept
        return kept[t].result()

    def tell(self, t: int, i: int) -> str:
        """What is known of the contexts of step t + 1 + i."""
        tags = np.asarray(self.tags(t + 1 + jnp.arange(self.every, dtype=jnp.int32)))[i]
        return self.source.tell(as_numbers(tags).ravel()) if self.source.tell else ""

    def _read(self, t: int) -> Fed:
        tags = np.asarray(self.tags(t + 1 + jnp.arange(self.every, dtype=jnp.int32)))
        n = tags.shape[1]
        if self.source.pack and not self.columns:
            packed = self.source.pack(as_numbers(tags).ravel(), self.room)
            self.room = len(jax.tree.leaves(packed.rows)[0])
            places = jax.tree.map(lambda a: a.reshape(*tags.shape[:2], *a.shape[1:]), packed.places)
            return jax.tree.map(jnp.asarray, Fed(tags, Packed(places, packed.rows)))
        tags = tags[:, self.columns.mine(n)] if self.columns else tags
        contexts = self.source.read(as_numbers(tags).ravel())
        stacked = jax.tree.map(lambda a: np.asarray(a).reshape(*tags.shape[:2], *a.shape[1:]), contexts)
        place = partial(self.columns.place, n=n) if self.columns else jnp.asarray
        return jax.tree.map(place, Fed(tags, stacked))

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
