"""An estimator called by hand: one estimate, compiled, of an x that is checked as `minimize` checks it."""

from __future__ import annotations

from bilevelax.base.compiling import program
from bilevelax.base.errors import require_key
from bilevelax.core.estimate import Estimate, Estimator, State
from bilevelax.core.problem import Key, Problem, X
from bilevelax.problems.validate import as_arrays, check_shapes


@program(static_argnames="estimator")
def _estimate(key: Key, problem: Problem, x: X, state: State, *, estimator: Estimator) -> tuple[Estimate, State]:
    return estimator.estimate(key, problem, x, state)


def call(estimator: Estimator, key: Key, problem: Problem, x: X, state: State = None) -> tuple[Estimate, State]:
    """(Estimate, state); without a state, the first."""
    require_key("an estimator", key)
    x = as_arrays("x", "an estimator", x)
    check_shapes(problem, x)
    state = estimator.init(problem, x) if state is None else state
    found: tuple[Estimate, State] = _estimate(key, problem, x, state, estimator=estimator)
    return found
