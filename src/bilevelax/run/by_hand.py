"""An estimator called by hand: one estimate, compiled, of an x that is checked as `minimize` checks it."""

from __future__ import annotations

from bilevelax.base.compiling import WAYS, program
from bilevelax.base.errors import require_key
from bilevelax.core.estimate import Estimate, Estimator, State
from bilevelax.core.problem import Key, Problem, X
from bilevelax.problems.little import how_to_compile
from bilevelax.problems.validate import as_arrays, check_shapes


def _estimate(key: Key, problem: Problem, x: X, state: State, *, estimator: Estimator) -> tuple[Estimate, State]:
    return estimator.estimate(key, problem, x, state)


PROGRAMS = {how: program(how, static_argnames="estimator")(_estimate) for how in WAYS}


def call(estimator: Estimator, key: Key, problem: Problem, x: X, state: State = None) -> tuple[Estimate, State]:
    """(Estimate, state); without a state, the first."""
    require_key("an estimator", key)
    x = as_arrays("x", "an estimator", x)
    check_shapes(problem, x)
    state = estimator.init(problem, x) if state is None else state
    estimate = PROGRAMS[how_to_compile(problem, estimator, x)]
    found: tuple[Estimate, State] = estimate(key, problem, x, state, estimator=estimator)
    return found
