"""Positive definite systems of any size without LAPACK: Cholesky's method by halves, small pieces row by row.

LAPACK's batched kernels, which `jnp.linalg.solve` calls under vmap, may wait for each other for ever
(`exact/linear.py`). Here the work is matrix products, which are safe under vmap and as fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LEAF = 16  # rows eliminated one by one
LEAVES = 8  # at most as many pieces of a matrix: each is compiled


class Halves(NamedTuple):
    """L of A = L L' in pieces: of the first half, below it, and of the Schur complement of the second."""

    first: Any  # Halves, or the inverse of a small L
    below: jax.Array
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
    return scale * _backward(factored.factored, _forward(factored.factored, scale * b))


def _factor(A: jax.Array, leaf: int | None = None) -> Any:
    n = len(A)
    leaf = max(LEAF, -(-n // LEAVES)) if leaf is None else leaf
    if n <= leaf:
        return inverse_root(A)
    half = n // 2
    first = _factor(A[:half, :half], leaf)
    below = _forward(first, A[:half, half:]).T
    return Halves(first, below, _factor(A[half:, half:] - below @ below.T, leaf))


def _forward(factored: Any, b: jax.Array) -> jax.Array:
    """The solution of L s = b."""
    if not isinstance(factored, Halves):
        solved: jax.Array = factored @ b
        return solved
    half = factored.below.shape[1]
    start = _forward(factored.first, b[:half])
    return jnp.concatenate([start, _forward(factored.second, b[half:] - factored.below @ start)])


def _backward(factored: Any, b: jax.Array) -> jax.Array:
    """The solution of L' s = b."""
    if not isinstance(factored, Halves):
        solved: jax.Array = factored.T @ b
        return solved
    half = factored.below.shape[1]
    end = _backward(factored.second, b[half:])
    return jnp.concatenate([_backward(factored.first, b[:half] - factored.below.T @ end), end])


def inverse_root(A: jax.Array) -> jax.Array:
    """The inverse of L, A = L L', row by row in the place of A: what is eliminated makes room for the inverse."""
    index = jnp.arange(len(A), dtype=jnp.int32)

    def take_out(k: jax.Array, A: jax.Array) -> jax.Array:
        below, here = index > k, index == k
        row = jnp.where(here, 1, A[k]) / A[k, k]
        column = jnp.where(below, A[:, k], 0)
        return jnp.where(below[:, None] & here[None], 0, A) - jnp.outer(column, row)

    done = lax.fori_loop(0, len(A), take_out, A)
    unit = jnp.where(index[:, None] > index[None], done, jnp.eye(len(A), dtype=A.dtype))
    return unit / jnp.sqrt(jnp.diagonal(done))[:, None]
