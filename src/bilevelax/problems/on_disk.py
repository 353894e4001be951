"""Rows of pairs that stay on disk: read by their numbers where they are drawn, passed over in blocks where all count.

A draw is addressed by its key as in memory, so it has the same row. The compiled program asks the host for the rows of
a batch when it needs them; nothing but these, and a sample for scaling, is ever held.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.core.problem import Eta, PyTree
from bilevelax.problems.bases import coordinates

ROWS_A_READ = 8192  # rows that the host hands over at once: a block of a pass
SAMPLED_ROWS, SAMPLED_BYTES = 2**16, 2**27  # of the sample in memory, at most
LEAST_SAMPLED = 256
MOST_ROWS = 2**31 - ROWS_A_READ  # numbers of rows are 32-bit integers, those of the last block too


class Rows(NamedTuple):
    """The data leaves of a problem of pairs: row i is one draw of (xi, eta)."""

    contexts: PyTree
    outcomes: PyTree

    @property
    def many(self) -> int:
        return len(jax.tree.leaves(self.contexts)[0])

    def at(self, i: Any) -> Rows:
        """Row i, or the rows of these numbers."""
        return Rows(*jax.tree.map(lambda a: a[i], tuple(self)))


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """Numbers with one entry for each row, of one array or of several side by side; read where they are asked for."""

    arrays: tuple[Any, ...]
    stacked: bool = False
    floating: bool = False  # whole numbers are sizes too

    def __getitem__(self, rows: Any) -> np.ndarray:
        parts = [np.asarray(a[rows]) for a in self.arrays]
        return numbers(np.stack(parts, axis=1) if self.stacked else parts[0], self.floating)

    def shape_of(self, many: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        first = self[:1]
        return jax.ShapeDtypeStruct((*many, *first.shape[1:]), first.dtype)

    @property
    def row_bytes(self) -> int:
        return self[:1].nbytes


def numbers(value: np.ndarray, floating: bool = False) -> np.ndarray:
    """In JAX's precision; whole numbers stay such unless they are sizes."""
    whole = np.issubdtype(value.dtype, np.integer) and not floating
    return value.astype(jax.dtypes.canonicalize_dtype(value.dtype if whole else float), copy=False)


class Blocks(NamedTuple):
    """All ``size`` outcomes of a context, too many to stack: ``block(b) -> (etas, weights)`` for b < n.

    In place of ``support``: what adds up over all of them, ``saa("all")``, `respond`, `evaluate` and `certify`, does so
    block by block.
    """

    block: Callable[[Any], tuple[Eta, jax.Array]]
    n: int
    size: int


class Reader:
    """What the host reads of a table: `Rows` of columns, and how many rows there are."""

    def __init__(self, columns: Rows, many: int) -> None:
        self.columns, self.many = columns, many

    def __call__(self, at: Any) -> tuple[PyTree, PyTree]:
        """The rows of these numbers, in any shape."""
        at = np.asarray(at)
        pick = lambda column: column[at.ravel()]
        return jax.tree.map(lambda a: a.reshape((*at.shape, *a.shape[1:])), jax.tree.map(pick, tuple(self.columns)))

    @property
    def block(self) -> int:
        """Rows of a block."""
        return min(ROWS_A_READ, self.many)

    def blocks(self) -> Iterator[tuple[int, Rows]]:
        """(first row, rows): all of them in turn."""
        for first in range(0, self.many, self.block):
            here = slice(first, first + self.block)
            yield first, Rows(*jax.tree.map(lambda column, here=here: column[here], tuple(self.columns)))


class OnDisk(eqx.Module):
    """The data leaves of a problem of pairs whose rows are read when they are drawn."""

    digest: jax.Array  # of all rows: a run goes on with no others
    sample: Rows  # some of them, evenly spaced, and the rows at the ends of each coordinate: what bases are scaled on
    reader: Reader = eqx.field(static=True)

    @property
    def many(self) -> int:
        return self.reader.many

    def at(self, i: Any) -> Rows:
        """Row i, or the rows of these numbers, from the disk."""
        i = jnp.asarray(i, jnp.int32)
        shapes = jax.tree.map(lambda column: column.shape_of(i.shape), tuple(self.reader.columns))
        return Rows(*jax.pure_callback(self.reader, shapes, i, vmap_method="broadcast_all"))

    def context_blocks(self) -> Iterator[np.ndarray]:
        """Coordinates of all contexts, (rows of a block, d)."""
        return (matrix(rows.contexts) for _, rows in self.reader.blocks())


def matrix(contexts: PyTree) -> np.ndarray:
    """Coordinates of stacked contexts (n, d)."""
    return np.asarray(jax.vmap(coordinates)(jax.tree.map(jnp.asarray, contexts)), np.float64)


def on_disk(columns: Rows, many: int) -> OnDisk:
    """One pass over all rows: are they finite, which are extreme, and what they are."""
    if many > MOST_ROWS:
        raise ValueError(
            f"`rows` of from_joint must be at most {MOST_ROWS}, whose numbers fit 32 bits. Got {many}; give every "
            f"{-(-many // MOST_ROWS)}th."
        )
    reader, hashed, ends = Reader(columns, many), hashlib.sha256(), Ends()
    for first, rows in reader.blocks():
        require_finite(rows, first)
        for a in jax.tree.leaves(tuple(rows)):
            hashed.update(np.ascontiguousarray(a).data)
        ends.see(first, matrix(rows.contexts))
    row_bytes = sum(column.row_bytes for column in jax.tree.leaves(tuple(columns)))
    kept = min(many, SAMPLED_ROWS, max(LEAST_SAMPLED, SAMPLED_BYTES // max(row_bytes, 1)))
    spaced = (np.arange(kept) * many) // kept
    sample = reader(np.union1d(spaced, ends.rows))
    digest = jnp.asarray(np.frombuffer(hashed.digest(), np.uint32))
    return OnDisk(digest, Rows(*jax.tree.map(jnp.asarray, sample)), reader)


class Ends:
    """The rows with the smallest and the largest value of each coordinate."""

    def __init__(self) -> None:
        self.lowest, self.rows = np.array([np.inf]), np.zeros(1, np.int64)

    def see(self, first: int, Z: np.ndarray) -> None:
        """A block of coordinates that begins with row number ``first``."""
        both = np.concatenate([Z, -Z], axis=1)
        at = np.argmin(both, axis=0)
        lowest = both[at, np.arange(both.shape[1])]
        self.rows = np.where(lowest < self.lowest, first + at, self.rows)
        self.lowest = np.minimum(lowest, self.lowest)


def require_finite(rows: Rows, first: int = 0) -> None:
    """Every number of every row; ``first`` is the number of the first of them."""
    for name, part in rows._asdict().items():
        for leaf in map(np.asarray, jax.tree.leaves(part)):
            bad = ~np.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1)
            if bad.any():
                raise ValueError(
                    f"`rows` of from_joint must be finite. Got {leaf[np.argmax(bad)]} in the {name} of row "
                    f"{first + np.argmax(bad)} ({bad.sum()} such rows); drop or fill them."
                )
