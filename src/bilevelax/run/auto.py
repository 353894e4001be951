""" "auto": `tune` chooses at x1, and a run that is found biased on its way changes to an estimator without bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax import random

from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.candidates import TUNED_CONTEXTS, candidates
from bilevelax.diagnostics.recheck import recheck
from bilevelax.run.watched import ROLE_AGAIN

if TYPE_CHECKING:
    from bilevelax.run.records.checkpoint import Keeper
    from bilevelax.run.run import Run

ROLE_TUNE = 2**31 + 1  # beyond every t: steps are addressed by (key, t)


class Auto:
    """Who chose the estimator of a run, and looks again where it stands."""

    def __init__(self, problem: Problem, x1: X, key: Key, every: int, devices: int, keeper: Keeper | None) -> None:
        self.problem, self.key, self.every, self.devices, self.keeper = problem, key, every, devices, keeper
        self.estimator, self.table = tuned_before(problem, keeper) or tuned_now(problem, x1, key, devices)

    def look(self, run: Run) -> None:
        """After 1, 2, 4, 8, ... chunks, whatever T is: a run that goes on later is the same run."""
        chunks, rest = divmod(run.t, self.every)
        due = chunks and not rest and chunks & (chunks - 1) == 0 and run.t < run.T
        others = [each for each in candidates(self.problem, TUNED_CONTEXTS, self.devices) if each.unbiased]
        if not due or self.problem.source is not None or "switched_at" in self.table:
            return
        if not self.table["choice"].startswith("saa(n=") or self.table["choice"].startswith("saa(n='all')"):
            return  # no other has a bias that another candidate has not
        key = random.fold_in(random.fold_in(self.key, ROLE_AGAIN), run.t)
        name, where = self.table["choice"], (self.problem, run.x, self.estimator)
        found = recheck(*where, key=key, name=name, devices=self.devices)
        if found.biased:
            self.estimator = others[0].estimator
            told = {"choice": others[0].name, "switched_from": name, "switched_at": run.t, **found.asdict()}
            self.table = run.manifest["tuning"] = {**self.table, **told}
            run.change(self.estimator)
            if self.keeper:
                self.keeper.identity = run.identity()


def tuned_now(problem: Problem, x1: X, key: Key, devices: int) -> tuple[Estimator, dict[str, Any]]:
    from bilevelax.diagnostics.tune import tune

    tuned = tune(problem, x1, key=random.fold_in(key, ROLE_TUNE), devices=devices)
    return tuned.estimator, {**tuned.asdict(), "devices": devices}


def tuned_before(problem: Problem, keeper: Keeper | None) -> tuple[Estimator, dict[str, Any]] | None:
    """What the run that goes on was given: a measurement taken again might choose another."""
    from bilevelax.diagnostics.candidates import named_candidate

    table = keeper.tuning() if keeper else None
    return (named_candidate(problem, table["choice"], table.get("devices", 1)), table) if table else None
