"""Has the network of `amortised` learnt the follower's answers? A row of `check`, where a conditional exists."""

from __future__ import annotations

from jax import random

from bilevelax.base.text_table import percent
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.check_report import CheckRow
from bilevelax.diagnostics.estimates import BATCHES, means_in_a_row
from bilevelax.diagnostics.gap import gap_to_exact
from bilevelax.estimators.amortised import Amortised

ESTIMATES = 8  # in each of 2 BATCHES: how long the network learns before it is asked
REMEDY = "more warm_up or steps, a smaller rate or a wider network"


def learned_rows(name: str, estimator: Estimator, problem: Problem, x: X, key: Key, tol: float) -> list[CheckRow]:
    """The gap of g to exact responses after a run at x; nothing for estimators without a network of answers."""
    made = estimator.settings
    if not isinstance(made, Amortised):
        return []
    key_run, key_gap = random.split(random.fold_in(key, 7))
    _, state = means_in_a_row(key_run, problem, x, estimator=estimator, batches=BATCHES, each=ESTIMATES)
    gap = gap_to_exact(problem, x, lambda xi: made.answer(problem, x, state, xi), key_gap)
    ok = gap.decided(tol)
    remedy = REMEDY if ok is False else "" if ok else "noise leaves it open: check at another x"
    return [CheckRow(f"{name}: answers against exact ones", ok, f"gap {gap}", f"<= {percent(tol)}", remedy)]
