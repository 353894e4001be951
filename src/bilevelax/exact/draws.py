"""The samples of one context by number: drawn again wherever they are needed, so that nothing need be stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.core.estimate import Count
from bilevelax.core.problem import Eta, Key, Problem, X, Xi
from bilevelax.exact.sample_average import Average, of_blocks, of_stack


def samples_of(key: Key, problem: Problem, xi: Xi, n: int) -> tuple[Eta, jax.Array]:
    """(samples, weights): all outcomes of a context where they are known, else n draws."""
    if problem.support is not None:
        return problem.outcomes(xi)
    return problem.conditionals(key, xi, n), jnp.full(n, 1 / n)


def halves(n: int) -> list[jax.Array]:
    """Weights of the mean over the first half of n samples, and over the others."""
    first = np.arange(n) < n // 2
    return [jnp.asarray(half / max(half.sum(), 1)) for half in (first, ~first)]


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
    """Samples start, ..., start + size - 1. ``most`` is not smaller, and the same for all that is vectorised."""

    start: Any
    size: Any
    most: Any  # where it is known at compile time, the range is taken in one piece


def average_of(draws: Draws, problem: Problem, x: X, xi: Xi, samples: Range, block: int) -> Average:
    """The sample-average problem on a range: in one piece where its size is known, else in blocks."""
    start, size, most = samples
    mass = draws.mass(start, size)

    def piece(offset: Count, n: int) -> tuple[Eta, jax.Array]:
        j = offset + jnp.arange(n, dtype=jnp.int32)
        etas, weights = draws.at(start + j)
        return etas, jnp.where(j < size, weights / mass, 0)

    if isinstance(most, int):
        return of_stack(problem, x, xi, *piece(0, most), size)
    return of_blocks(problem, x, xi, lambda b: piece(b * block, block), -(-most // block), size)
