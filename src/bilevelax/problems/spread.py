"""Contexts of a minibatch spread evenly over their numbers, instead of drawn one by one."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
from jax import random

from bilevelax.base.addresses import find, tag
from bilevelax.core.problem import Key, Problem, PyTree, Xi


class Assigned(NamedTuple):
    """Which number each key of a context stands for."""

    tags: Any  # (contexts, 2)
    numbers: Any  # (contexts,)


def spread_numbers(key: Key, n: int, m: int) -> jax.Array:
    """m numbers below n, one at random from each of m equal stretches: each number once where m = n.

    A single one of them is uniform, since which stretch it has is random too: means stay what they are.
    """
    key_stretch, key_place = random.split(key)
    stretch, place = random.permutation(key_stretch, m), random.randint(key_place, (m,), 0, n)
    whole, rest = divmod(n, m)
    return stretch * whole + (stretch * rest + place) // m  # (stretch n + place) / m, without that large product


def with_spread_contexts(problem: Problem, key: Key, asked: Key) -> Problem:
    """The same problem, which answers the stacked keys ``asked`` with contexts of spread numbers."""
    n, at = problem.n_contexts, problem.context_at
    if n is None or at is None:
        raise ValueError(
            "contexts='spread' of minibatch needs finitely many contexts: Problem(..., n_contexts=..., "
            "context_at=...). Otherwise use contexts='independent'."
        )
    assigned = Assigned(jax.vmap(tag)(asked), spread_numbers(key, n, len(asked)))

    def sample_context(key: Key, data: tuple[PyTree, Assigned]) -> Xi:
        return at(find(key, *data[1]), data[0])

    return dataclasses.replace(problem.carrying(assigned), sample_context=sample_context)
