"""Sample averages of any size by one program: `tune` measures with it all candidates that differ in numbers only."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax, random

from bilevelax.base.compiling import jit_once
from bilevelax.core.estimate import Cost, Count, Estimate, Estimator, first_of_split, stateless
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Key, Problem, X, Xi
from bilevelax.diagnostics.contexts import only_contexts
from bilevelax.diagnostics.correction_rate import least_work, work
from bilevelax.diagnostics.estimates import met
from bilevelax.diagnostics.host import flat_rows
from bilevelax.exact.draws import Range, average_of, kept, with_replacement
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import newton_solver, respond_from_start

BLOCK, MOST = 8, 128  # samples added up at once, and the most of a context
PILOT, GROUPS = 8, 8  # n0 and the groups of the pilot: 64 samples


class Calls(NamedTuple):
    """Minibatches by number, and which samples of each context they take: all of it data."""

    number: np.ndarray
    start: np.ndarray
    size: np.ndarray


class Lanes(NamedTuple):
    """The contexts of a minibatch: how many, and how they are drawn."""

    m: int
    how: str


def on_samples(start: Count, size: Count) -> Estimator:
    """`saa` on samples start, ..., start + size - 1 of its draws, both of which may be traced."""

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        key_xi, key_y = random.split(key)
        xi = problem.context(key_xi)
        drawn = with_replacement(random.split(key_y)[0], problem, xi)
        draws = kept(drawn, -(-(start + size) // BLOCK), BLOCK, MOST // BLOCK)
        average = average_of(draws, problem, x, xi, Range(start, size, size), BLOCK)
        response = respond_from_start(average, problem, x, xi, newton_solver(), direct_or_cg())
        return Estimate(response.grad, Cost(xi=1, eta=size) + response.cost, {})

    return stateless(estimate, contexts=first_of_split(2))


@jit_once(static_argnames=("lanes",))
def averages(
    key: Key, problem: Problem, x: X, contexts: Xi, calls: Calls, lanes: Lanes, grads: Any = None
) -> tuple[X, Cost, Any]:
    """The gradients of each call's contexts and their cost; call c has the draws of call c of `means`.

    And the mean of their exact ``grads``, where these are given.
    """
    few = only_contexts(problem, contexts, numbered=grads is not None)

    def one(call: Calls) -> tuple[X, Cost, Any]:
        key_c = random.fold_in(key, call.number)
        whole = minibatch(on_samples(call.start, call.size), lanes.m, "vmap", lanes.how)
        found = whole.settings.lanes(key_c, few, x)
        return found.grad, found.cost, None if grads is None else met(whole, key_c, grads)

    return lax.map(one, calls)


def calls_of(n: int, times: int) -> Calls:
    """So many calls of ``saa(n)``."""
    return Calls(np.arange(times, dtype=np.int32), np.zeros(times, np.int32), np.full(times, n, np.int32))


def pilot_rate(key: Key, problem: Problem, x: X, contexts: Xi, lanes: Lanes, grads: Any = None) -> float:
    """`correction_rate` of ``antithetic_mlmc(8, levels=2, factor=8)``, to three digits: by this program too."""
    one = np.zeros(GROUPS, np.int32)
    groups = Calls(one, PILOT * np.arange(GROUPS, dtype=np.int32), one + PILOT)
    parts, part_cost, _ = averages(key, problem, x, contexts, groups, lanes, grads)
    larger = groups._replace(start=one, size=one + GROUPS * PILOT)
    whole, whole_cost, _ = averages(key, problem, x, contexts, larger, lanes, grads)
    take = lambda tree, i: jax.tree.map(lambda a: np.asarray(a)[i], tree)
    phi, delta = flat_rows(take(parts, 0)), flat_rows(take(whole, 0))
    delta = delta - np.mean([flat_rows(take(parts, g)) for g in range(GROUPS)], axis=0)
    drawn_twice = float(np.sum(np.asarray(part_cost.eta)))
    C_1 = work(take(whole_cost, 0)) + work(part_cost) - drawn_twice
    return float(f"{least_work(phi, delta, work(take(part_cost, 0)), C_1, 2, GROUPS):.3g}")
