"""The samples of one context by number: drawn again wherever they are needed, so that nothing need be stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
    total: Count = None  # how many there are, if finitely many
    rows: int | None = None  # a bound of it that is known at compile time


def with_replacement(key: Key, problem: Problem, xi: Xi) -> Draws:
    """Independent draws, sample j addressed by (key, j)."""
    return _equal(jax.vmap(lambda j: problem.conditional(random.fold_in(key, j), xi)))


def in_memory(etas: Eta) -> Draws:
    """Independent draws that were made before."""
    return _equal(lambda j: jax.tree.map(lambda a: a[j], etas))


def _equal(at: Callable[[jax.Array], Eta]) -> Draws:
    return Draws(lambda j: (at(j), jnp.ones(j.shape)), lambda start, size: jnp.asarray(size, float))


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

    total = jnp.sum(weights > 0, dtype=jnp.int32)
    return Draws(at, lambda start, size: until[start + size] - until[start], total, rows)


def kept(draws: Draws, n: Count, block: int, capacity: int) -> Draws:
    """Independent draws, the first n blocks of them in memory; n may be traced and is at most ``capacity``."""

    def numbers(b: Count) -> jax.Array:
        return b * block + jnp.arange(block, dtype=jnp.int32)

    def fill(b: Count, memory: Eta) -> Eta:
        return jax.tree.map(
            lambda a, new: lax.dynamic_update_slice_in_dim(a, new, b * block, 0), memory, draws.at(numbers(b))[0]
        )

    shapes = jax.eval_shape(lambda: draws.at(numbers(0))[0])
    empty = jax.tree.map(lambda s: jnp.zeros((capacity * block, *s.shape[1:]), s.dtype), shapes)
    return in_memory(lax.fori_loop(0, n, fill, empty))


class Range(NamedTuple):
    """Samples start, ..., start + size - 1; ``bound``, if any, is a size known at compile time and not smaller."""

    start: Any
    size: Any
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
