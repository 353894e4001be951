"""What a run says of its follower: where its problem has no minimum, every gradient is wrong, and none need be NaN."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from jax import random

from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem
from bilevelax.exact.unsolved import MANY, SOME, sentence
from bilevelax.run.records.history import Row

if TYPE_CHECKING:
    from bilevelax.run.auto import Auto
    from bilevelax.run.run import Run

ROLE_AGAIN = 2**31 + 3  # beyond every t: steps are addressed by (key, t)
COLUMN = "lower_unsolved"


def look_at_the_result(
    run: Run, problem: Problem, estimator: Estimator, key: Key, wanted: bool, auto: Auto | None
) -> None:
    """Was the follower solved? And, where that is ``wanted``, what is the estimator worth here? Warns and records."""
    if any(COLUMN in row for row in run.history):
        tell_of_followers(run.history)
    if wanted:
        from bilevelax.diagnostics.recheck import at_the_end

        name, devices = (auto.table["choice"], auto.devices) if auto else ("", 1)
        key = random.fold_in(random.fold_in(key, ROLE_AGAIN), 2**31)
        run.manifest["recheck"] = at_the_end(problem, run.x, estimator, key=key, name=name, devices=devices)


def tell_of_followers(history: list[Row]) -> None:
    """One warning where estimates solved followers without a minimum: in many steps, or in the last ones."""
    rows = [(row["t"], row[COLUMN]) for row in history if COLUMN in row]
    steps = [b - a for (a, _), (b, _) in zip([(0.0, 0.0), *rows], rows, strict=False)]
    share = sum(n * each for n, (_, each) in zip(steps, rows, strict=True)) / max(sum(steps), 1.0)
    if share > SOME or rows[-1][1] > MANY:
        warnings.warn(sentence(max(share, rows[-1][1]), "the estimates of this run"), RuntimeWarning, stacklevel=5)


def causes(aux: dict[str, Any], good: int) -> str:
    """Why x may have become non-finite in step number ``good`` of a chunk with these logs."""
    if COLUMN not in aux:
        return (
            "Usual causes: the outer step or beta0 too large, long Neumann products with L_g1 underestimated, or a "
            "follower without a minimum (see `check`)."
        )
    share = float(aux[COLUMN][: good + 1].mean())
    unsolved = sentence(share, "the estimates before") if share > 0 else ""
    return unsolved or "Usual cause: the outer step is too large; the follower's problem was solved in every step."
