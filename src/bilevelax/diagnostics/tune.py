"""Which estimator, which settings? Measured on the problem at hand, within a budget of seconds."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from jax import random

from bilevelax.base.errors import require_integer, require_key, require_positive
from bilevelax.base.text_table import Table, as_text, number, percent
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.averages import pilot_rate
from bilevelax.diagnostics.bench import CALLS_A_LAP, Bench, Lap, Trial
from bilevelax.diagnostics.candidates import TUNED_CONTEXTS, Candidate, candidates, lanes_of
from bilevelax.diagnostics.reference import QUICK, reference
from bilevelax.exact.unsolved import require_followers
from bilevelax.problems.validate import as_arrays, check_shapes

SHORT, MORE = 0.05, 4  # seconds of a lap, up to which more of them are taken at once
DOUBTS = 3  # times that the one that leads is measured twice as long, where its bias is in doubt


class Tuned(NamedTuple):
    """The estimator chosen, and the measurements behind the choice, best first."""

    estimator: Estimator
    choice: str
    trials: tuple[Trial, ...]
    skipped: tuple[str, ...]  # candidates that the budget left out
    seconds: float
    tol: float  # largest relative bias allowed

    def asdict(self) -> dict[str, Any]:
        """For a manifest: plain numbers and strings."""
        rows = [{**t._asdict(), "estimator": None, "bias": list(map(float, t.bias[:3]))} for t in self.trials]
        for row in rows:
            del row["estimator"]
        return {"choice": self.choice, "seconds": self.seconds, "skipped": list(self.skipped), "trials": rows}

    def __str__(self) -> str:
        rows = [
            [
                trial.name,
                *map(number, (1e3 * trial.seconds, trial.variance, 1e3 * trial.seconds * trial.variance)),
                str(trial.bias),
                str(trial.calls),
                number(trial.compile_seconds),
            ]
            for trial in self.trials
        ]
        columns = ["estimator", "ms a call", "variance", "ms x variance", "bias", "calls", "compile s"]
        left = f" No time for: {', '.join(self.skipped)}." if self.skipped else ""
        biased = self.trials[0].score(self.tol)[0]
        warning = f" Every candidate measured is biased above {percent(self.tol)}: this one least." if biased else ""
        if not biased and self.trials[0].doubtful(self.tol):
            warning = f" Its bias may be {percent(self.trials[0].bias.high)}: none surely without was measured."
        return f"Chosen in {self.seconds:.1f} s: {self.choice}.{warning}{left}\n{as_text(Table('', columns, rows))}"


def tune(
    problem: Problem,
    x: X,
    *,
    key: Key,
    budget_seconds: float = 10.0,
    contexts: int = TUNED_CONTEXTS,
    tol: float = 0.05,
    among: dict[str, Estimator] | None = None,
    devices: int = 1,
) -> Tuned:
    """Choose an estimator by measurement at x: least time x variance among those without visible bias.

    Each candidate is a `minibatch` of ``contexts``; where there are no more than that, each has its share of
    it, and with all its outcomes known the gradient is exact. All that the budget allows are measured a
    little, the better half of them twice as long, and so on until one is left or time is up
    (successive halving); a survivor that turns out biased gives way to the best without visible bias.
    One program measures `saa` of every size, and the rate of `antithetic_mlmc` in a pilot.
    Bias is measured against exact gradients of 32 contexts and relative to the size of the
    gradient's terms; where it may be above ``tol``, one without bias is preferred. Compilation takes
    most of a small budget: what there is no time for is listed in ``skipped``; sample averages, or
    one of ``among``, are measured whatever the budget.

    Args:
        budget_seconds: for all of it, compilation included.
        contexts: averaged in each estimate.
        tol: largest relative bias allowed; an estimator is refused where its bias is surely above.
        among: candidates by name instead of the library's own; used as they are, without a minibatch.
        devices: of the mesh that the estimator is for; its contexts are a multiple of them.
    """
    started = time.perf_counter()
    require_key("tune", key)
    require_positive("budget_seconds", "tune", budget_seconds, infinite=True)
    require_integer("contexts", "tune", contexts, 1)
    require_integer("devices", "tune", devices, 1)
    require_positive("tol", "tune", tol)
    if among is not None and not among:
        raise ValueError(
            "`among` of tune must name at least one estimator. Got none; leave it out for the library's own."
        )
    x = as_arrays("x", "tune", x)
    check_shapes(problem, x)
    exact = reference(random.fold_in(key, 0), problem, x, **QUICK)
    require_followers("tune", exact.unsolved, "its contexts")
    left = lambda: budget_seconds - (time.perf_counter() - started)
    bench = Bench(problem, x, exact, random.fold_in(key, 1), left, tol, lanes_of(problem, contexts, devices)[1])
    if among is None:
        chosen, laps = _of_the_library(bench, contexts, devices, random.fold_in(key, 2))
    else:
        chosen, laps = [Candidate(*each) for each in among.items()], {}
    laps = _first_laps(chosen, laps, bench)
    trials = best_first(_halved(laps, chosen, bench), tol)
    measured = {trial.name for trial in trials}
    skipped = tuple(each.name for each in chosen if each.name not in measured)
    best = trials[0]
    if not np.isfinite(best.score(tol)[1]):
        raise ValueError(
            f"tune needs a candidate whose gradients at x are finite. Got none among {', '.join(sorted(measured))}; "
            "see `check` for what is wrong, or name others in `among`."
        )
    return Tuned(best.estimator, best.name, tuple(trials), skipped, time.perf_counter() - started, tol)


def _of_the_library(bench: Bench, contexts: int, devices: int, key: Key) -> tuple[list[Candidate], dict[str, Lap]]:
    """The library's own candidates, and first laps of those that need no program of their own.

    Where all outcomes are known, they are taken first, and alone where that leaves no noise.
    """
    made, laps = candidates(bench.problem, contexts, devices), {}
    if bench.problem.support is not None:
        laps[made[0].name] = bench.exactly(made[0], 1)
        if bench.noiseless(bench.trial(made[0], laps[made[0].name])):
            return made[:1], laps
        if bench.little:
            laps[made[0].name] = bench.alone(made[0], None, 1)
    started = time.perf_counter()
    rate = pilot_rate(key, bench.problem, bench.x, bench.exact.contexts, bench.lanes, bench.exact.grads)
    seconds = time.perf_counter() - started  # nearly all of it compiles what follows
    made = candidates(bench.problem, contexts, devices, rate)
    for each in made:
        if each.n is not None:
            lap = bench.together(each, None, 1)
            if lap.seconds[0] * CALLS_A_LAP < SHORT:  # a single one so short says little
                lap = bench.together(each, lap, MORE)
            laps[each.name] = lap._replace(compile_seconds=lap.compile_seconds + seconds)
            seconds = 0.0
    return made, laps


def _first_laps(chosen: list[Candidate], laps: dict[str, Lap], bench: Bench) -> dict[str, Lap]:
    """A first measurement of what there is time to compile; of one candidate, whatever the time.

    What must compete with others than those of its program is measured again by its own.
    """
    before = len(laps)
    unit = max((lap.compile_seconds for lap in laps.values()), default=0.0)  # for a weight of one, the most seen
    for each in chosen:
        if each.name not in laps and (not laps or bench.left() > each.weight * unit):
            laps[each.name] = bench.alone(each, None, 1)
            unit = max(unit, laps[each.name].compile_seconds / each.weight)
    shared = [each for each in chosen if each.name in laps and laps[each.name].shared]
    if shared and len(laps) > before:
        best = min(shared, key=lambda each: bench.trial(each, laps[each.name]).score(bench.tol))
        laps[best.name] = bench.alone(best, None, 1)
    return laps


def _halved(laps: dict[str, Lap], chosen: list[Candidate], bench: Bench) -> list[Trial]:
    """Measure the better half twice as long, and so on; those that stayed longest come first."""
    named = {each.name: each for each in chosen}
    trials = {name: bench.trial(named[name], lap) for name, lap in laps.items()}
    ranked = lambda names: sorted((trials[name] for name in names), key=lambda trial: trial.score(bench.tol))
    dropped: list[Trial] = []
    alive, times = ranked(trials), 2
    while len(alive) > 1 and bench.left() > 0:
        half, times = -(-len(alive) // 2), 2 * times
        alive, dropped = alive[:half], [*alive[half:], *dropped]
        for name, _, _, seconds, *_ in alive:
            if bench.left() > times * CALLS_A_LAP * seconds:
                measure = bench.together if laps[name].shared else bench.alone
                laps[name] = measure(named[name], laps[name], times)
                trials[name] = bench.trial(named[name], laps[name])
        alive = ranked(trial.name for trial in alive)
    for _ in range(DOUBTS):  # what leads is looked at until its bias is told from the tolerance, while there is time
        leader = alive[0]
        if leader.bias.decided(bench.tol) is not None or bench.left() < leader.calls * leader.seconds:
            break
        measure = bench.together if laps[leader.name].shared else bench.alone
        laps[leader.name] = measure(named[leader.name], laps[leader.name], leader.calls // CALLS_A_LAP)
        alive[0] = bench.trial(named[leader.name], laps[leader.name])
    return [*alive, *dropped]


def best_first(trials: list[Trial], tol: float) -> list[Trial]:
    """Surely or by nature without bias, then in doubt, then biased: a survivor may have been found out last.

    Those of one kind keep their order, the biased are sorted by bias.
    """

    def rank(trial: Trial) -> tuple[int, float]:
        biased, size = trial.score(tol)
        return (2, size) if biased else (int(trial.doubtful(tol)), 0.0)

    return sorted(trials, key=rank)
