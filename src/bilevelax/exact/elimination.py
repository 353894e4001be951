"""Positive definite systems of any size without LAPACK: by halves, down to pieces that are inverted row by row.

LAPACK's batched kernels, which `jnp.linalg.solve` calls under vmap, may wait for each other for ever
(`exact/linear.py`). Here the work is matrix products, which are safe under vmap and as fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LEAF = 32  # rows eliminated one by one
LEAVES = 4  # at most as many pieces of a matrix: each is compiled


class Halves(NamedTuple):
    """A factored matrix: its first half, what that makes of the corner, and the Schur complement of the second."""

    first: Any  # Halves, or an inverse
    corner: jax.Array
    across: jax.Array
    second: Any


class Scaled(NamedTuple):
    """A factored matrix whose diagonal was made one first: rows of all sizes do not spoil each other."""

    scale: jax.Array
    factored: Any


def factor(A: jax.Array) -> Scaled:
    """What `apply` needs to solve A s = b for a positive definite A."""
    diagonal = jnp.diagonal(A)
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1))
    return Scaled(scale, _factor(A * jnp.outer(scale, scale)))


def apply(factored: Scaled, b: jax.Array) -> jax.Array:
    """The solution of A s = b; b is a vector or a matrix of right-hand sides."""
    scale = factored.scale if b.ndim == 1 else factored.scale[:, None]
    return scale * _apply(factored.factored, scale * b)


def _factor(A: jax.Array, leaf: int | None = None) -> Any:
    n = len(A)
    leaf = max(LEAF, -(-n // LEAVES)) if leaf is None else leaf
    if n <= leaf:
        return inverted(A)
    half = n // 2
    first, corner = _factor(A[:half, :half], leaf), A[:half, half:]
    across = _apply(first, corner)
    return Halves(first, corner, across, _factor(A[half:, half:] - corner.T @ across, leaf))


def _apply(factored: Any, b: jax.Array) -> jax.Array:
    if not isinstance(factored, Halves):
        solved: jax.Array = factored @ b
        return solved
    first, corner, across, rest = factored
    half = len(corner)
    start = _apply(first, b[:half])
    second = _apply(rest, b[half:] - corner.T @ start)
    return jnp.concatenate([start - across @ second, second])


def inverted(A: jax.Array) -> jax.Array:
    """The inverse row by row (Gauss and Jordan); no pivots are needed."""
    rows = jnp.concatenate([A, jnp.eye(len(A), dtype=A.dtype)], axis=1)

    def take_out(k: jax.Array, rows: jax.Array) -> jax.Array:
        pivot = rows[k] / rows[k, k]
        return rows - jnp.outer(rows[:, k].at[k].add(-1), pivot)

    done: jax.Array = lax.fori_loop(0, len(A), take_out, rows)[:, len(A) :]
    return done
