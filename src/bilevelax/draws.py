"""The samples of one context by address: drawn again wherever they are needed, so that nothing need be stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.estimate import Count
from bilevelax.problem import Eta, Key, Problem, X, Xi
from bilevelax.sample_average import Average, of_blocks, of_stack


class Draws(NamedTuple):
    """Samples number 0, 1, 2, ... of a context."""

    at: Callable[[jax.Array], tuple[Eta, jax.Array]]  # numbers -> (samples, weights)
    mass: Callable[[Count, Count], jax.Array]  # (start, size) -> the sum of that range's weights
    count: Count | None = None  # how many there are, if finitely many
    rows: int | None = None  # an upper bound of count that is known at compile time


def with_replacement(key: Key, problem: Problem, xi: Xi) -> Draws:
    """Independent draws, sample j addressed by (key, j)."""

    def at(j: jax.Array) -> tuple[Eta, jax.Array]:
        return jax.vmap(lambda j: problem.conditional(random.fold_in(key, j), xi))(j), jnp.ones(j.shape)

    return Draws(at, lambda start, size: jnp.asarray(size, float))


def without_replacement(key: Key, problem: Problem, xi: Xi) -> Draws:
    """The outcomes of a context in random order, each once."""
    etas, weights = problem.outcomes(xi)
    rows = len(weights)
    padding = (weights == 0).astype(weights.dtype)
    order = jnp.argsort(random.uniform(key, (rows,), weights.dtype) + padding)  # padding comes last
    until = jnp.concatenate([jnp.zeros(1, weights.dtype), jnp.cumsum(weights[order])])

    def at(j: jax.Array) -> tuple[Eta, jax.Array]:
        row = order[jnp.minimum(j, rows - 1)]
        return jax.tree.map(lambda a: a[row], etas), weights[row]

    count = jnp.sum(weights > 0, dtype=jnp.int32)
    return Draws(at, lambda start, size: until[start + size] - until[start], count, rows)


def kept(draws: Draws, n: Count, block: int, capacity: int) -> Draws:
    """The same draws with the first n blocks of them in memory; n may be traced, ``capacity`` bounds it."""

    def fill(b: Count, memory: tuple[Eta, jax.Array]) -> tuple[Eta, jax.Array]:
        new = draws.at(b * block + jnp.arange(block, dtype=jnp.int32))
        return jax.tree.map(lambda a, u: lax.dynamic_update_slice_in_dim(a, u, b * block, 0), memory, new)

    shapes = jax.eval_shape(lambda: draws.at(jnp.arange(block, dtype=jnp.int32)))
    empty = jax.tree.map(lambda s: jnp.zeros((capacity * block, *s.shape[1:]), s.dtype), shapes)
    memory = draws.at(jnp.arange(n * block, dtype=jnp.int32)) if isinstance(n, int) else lax.fori_loop(0, n, fill, empty)
    return draws._replace(at=lambda j: jax.tree.map(lambda a: a[j], memory))


class Range(NamedTuple):
    """Samples start, ..., start + size - 1; ``bound`` is a size known at compile time that is at least as large."""

    start: Count
    size: Count
    bound: int | None = None


def average_of(draws: Draws, problem: Problem, x: X, xi: Xi, samples: Range, block: int) -> Average:
    """The sample-average problem on a range: in one piece where its size is known, else in blocks."""
    start, size, bound = samples
    mass = draws.mass(start, size)

    def piece(offset: Count, n: int) -> tuple[Eta, jax.Array]:
        j = offset + jnp.arange(n, dtype=jnp.int32)
        etas, weights = draws.at(start + j)
        return etas, jnp.where(j < size, weights / mass, 0)

    if bound is not None:
        return of_stack(problem, x, xi, *piece(0, bound), size)
    return of_blocks(problem, x, xi, lambda b: piece(b * block, block), -(-size // block), size)
