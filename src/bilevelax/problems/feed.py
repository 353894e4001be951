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
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, PyTree


class Packed(NamedTuple):
    """Contexts of different sizes without padding: where each one's rows lie among all rows, which are stored once.

    On a mesh every device has the rows of its own contexts, so there are as many parts as devices; a program that
    runs on one device sees one part.
    """

    places: PyTree  # (contexts, ...), or (steps, contexts, ...)
    rows: PyTree  # (parts, room, ...)


class Source(NamedTuple):
    """Where contexts come from: ``read(tags) -> stacked contexts``, NumPy in, NumPy out.

    ``pack(tags, room)`` gives them packed, as one part of ``room`` rows; ``room(tags, before)`` tells how many rows to
    make room for, ``before`` if these are enough; ``tell(tags)`` says which contexts they are.
    """

    read: Callable[[np.ndarray], PyTree]
    digest: str  # of what is stored there
    pack: Callable[[np.ndarray, int], Packed] | None = None
    room: Callable[[np.ndarray, int], int] = lambda tags, before: before
    tell: Callable[[np.ndarray], str] | None = None
    padded: Callable[[], PyTree] | None = None  # the problem's data as 0.1.0 laid them out, whose runs go on


class Fed(NamedTuple):
    """The data leaves of a problem during one step: the contexts that it will ask for. Of many steps, stacked."""

    tags: Any  # (contexts, 2)
    contexts: PyTree

    def of_step(self, i: Any) -> Fed:
        """The contexts of step i of many; packed rows belong to all steps."""
        row = partial(lax.dynamic_index_in_dim, index=i, axis=0, keepdims=False)
        if isinstance(self.contexts, Packed):
            return Fed(row(self.tags), Packed(jax.tree.map(row, self.contexts.places), self.contexts.rows))
        return jax.tree.map(row, self)


class Columns(NamedTuple):
    """How the contexts of a step are dealt to devices."""

    parts: Callable[[int], list[np.ndarray]]  # number of contexts -> those of every device, of other processes too
    mine: list[int]  # the parts that this process reads
    place: Callable[[np.ndarray], jax.Array]  # what it read, (steps, its contexts, ...), as an array of the mesh
    place_parts: Callable[[np.ndarray], jax.Array]  # (its parts, ...)


UNDIVIDED = Columns(lambda n: [np.arange(n)], [0], jnp.asarray, jnp.asarray)


class Feeder:
    """Reads the contexts of ``every`` steps at a time, one chunk ahead.

    Args:
        source: where they come from.
        keys: ``t -> the stacked keys of the contexts of step t``.
        every: steps of a chunk.
        columns: which contexts of a step each device has, and how they become arrays of a mesh; by default one
            device has all. They are packed where the source can.
    """

    def __init__(
        self,
        source: Source,
        keys: Callable[[jax.Array], Key],
        every: int,
        columns: Columns | None = None,
    ) -> None:
        self.source, self.keys, self.every, self.columns = source, keys, every, columns or UNDIVIDED
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
        parts = self.columns.parts(tags.shape[1])
        mine = [tags[:, parts[p]] for p in self.columns.mine]
        own = self.columns.place(np.concatenate(mine, axis=1))
        if self.source.pack:
            # every process asks for the room of all parts, so that all of them make arrays of one shape
            self.room = max(self.source.room(as_numbers(tags[:, part]).ravel(), self.room) for part in parts)
            return Fed(own, self._packed(mine))
        stacked = [_of_steps(self.source.read(as_numbers(each).ravel()), each) for each in mine]
        joined = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *stacked)
        return Fed(own, jax.tree.map(self.columns.place, joined))

    def _packed(self, mine: list[np.ndarray]) -> Packed:
        made = [self.source.pack(as_numbers(each).ravel(), self.room) for each in mine]  # type: ignore[misc]
        places = [_of_steps(part.places, each) for part, each in zip(made, mine, strict=True)]
        return Packed(
            jax.tree.map(lambda *a: self.columns.place(np.concatenate(a, axis=1)), *places),
            jax.tree.map(lambda *a: self.columns.place_parts(np.concatenate(a)), *(part.rows for part in made)),
        )

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)


def _of_steps(contexts: PyTree, tags: np.ndarray) -> PyTree:
    """One row of contexts for each step."""
    return jax.tree.map(lambda a: np.asarray(a).reshape(*tags.shape[:2], *np.shape(a)[1:]), contexts)


def feeder_of(source: Source, estimator: Estimator, key_of: Callable[[Any], Key], every: int, columns: Any) -> Feeder:
    """Of a problem whose contexts are on disk; ``key_of(t)`` is the key of step t's estimate."""
    contexts = estimator.contexts
    if contexts is None:
        raise ValueError(
            "`estimator` of minimize must tell its contexts' keys where they are read from disk: Estimator(..., "
            "contexts=...). Use rt_mlmc, dl_sgd, saa, antithetic_mlmc, maml, imaml or a minibatch of one of them."
        )
    return Feeder(source, lambda t: contexts(key_of(t)), every, columns)
