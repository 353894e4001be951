"""What `minimize` asks between chunks: shall the run stop, and what are its estimator's gradients worth there?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jax import random

from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem
from bilevelax.run.run import Question

if TYPE_CHECKING:
    from bilevelax.diagnostics.certify import StopWhen

ROLE_STOP, ROLE_DIAGNOSE = 2**31, 2**31 + 2  # beyond every t: steps are addressed by (key, t)


def questions(
    problem: Problem, estimator: Estimator, key: Key, diagnose: int, stop_when: StopWhen | None
) -> list[Question]:
    found = []
    if diagnose:
        from bilevelax.diagnostics.diagnosis import diagnosis

        columns = diagnosis(estimator)
        ask = lambda x, key: (False, columns(problem, x, key))
        found.append(Question("diagnose", ask, random.fold_in(key, ROLE_DIAGNOSE), diagnose))
    if stop_when is not None:
        found.append(Question("stop_when", partial(stop_when, problem), random.fold_in(key, ROLE_STOP)))
    return found
