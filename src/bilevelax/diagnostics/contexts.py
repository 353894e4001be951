"""Some contexts of a problem: which ones diagnostics look at, and the problem in which only these occur."""

from __future__ import annotations

from typing import Any

import jax
from jax import random

from bilevelax.core.problem import Key, Problem, PyTree, Xi


def takes_every(problem: Problem, n: int) -> bool:
    """Whether n contexts are all there are."""
    return problem.n_contexts is not None and problem.n_contexts <= n


def context_number(i: Any, key: Key, problem: Problem, every: bool) -> Xi:
    """Context i: a draw, or simply number i where every one of them is looked at."""
    return problem.nth_context(i) if every else problem.context(random.fold_in(key, i))


def count_contexts(problem: Problem, n: int) -> int:
    return n if problem.n_contexts is None else min(n, problem.n_contexts)


def number_of(key: Key, M: int) -> jax.Array:
    """Which of M contexts this key draws."""
    return random.randint(key, (), 0, M)


def only_contexts(problem: Problem, contexts: Xi, numbered: bool = False) -> Problem:
    """The same problem where only these contexts occur, equally likely: its exact gradient is the mean of theirs.

    ``numbered``: also where they are all there are, so that `number_of` tells which one a key draws.
    """
    M = jax.tree.leaves(contexts)[0].shape[0] if jax.tree.leaves(contexts) else 1
    if takes_every(problem, M) and not numbered:
        return problem

    def context_at(i: Any, data: tuple[PyTree, Xi]) -> Xi:
        return jax.tree.map(lambda a: a[i], data[1])

    return problem.carrying(contexts).replace(
        sample_context=lambda key, data: context_at(number_of(key, M), data),
        n_contexts=M,
        context_at=context_at,
    )
