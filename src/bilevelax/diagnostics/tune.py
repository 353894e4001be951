"""Which estimator, which settings? Measured on the problem at hand, within a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random

from bilevelax.base.errors import require_integer, require_key, require_positive
from bilevelax.base.text_table import Table, as_text, number, percent
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.averages import Lanes, averages, calls_of, pilot_rate
from bilevelax.diagnostics.bias import Bias, relative_bias
from bilevelax.diagnostics.candidates import TUNED_CONTEXTS, Candidate, candidates, lanes_of
from bilevelax.diagnostics.estimates import means, optimised_means
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.reference import QUICK, Reference, reference
from bilevelax.exact.unsolved import require_followers
from bilevelax.problems.little import little_work
from bilevelax.problems.validate import as_arrays, check_shapes

CALLS_A_LAP = 8  # of an estimator in one measurement
SHORT, MORE = 0.05, 4  # seconds of a lap, up to which more of them are taken at once
DOUBTS = 3  # times that the one that leads is measured twice as long, where its bias is in doubt
NOISELESS = 1e-3  # relative to the gradient's terms: noise that nobody needs to reduce


class Trial(NamedTuple):
    """What is known of one candidate."""

    name: str
    estimator: Estimator
    compile_seconds: float
    seconds: float  # of one call, the median
    variance: float  # of one call, the trace of its covariance
    bias: Bias  # relative to the size of the gradient's terms
    calls: int
    unbiased: bool = False  # by how it is made, or nearly

    def score(self, tol: float) -> tuple[bool, float]:
        """Smaller is better: no bias above ``tol`` that can be seen, then time x variance; infinite if not finite."""
        biased = self.bias.decided(tol) is False
        size = self.bias.estimate if biased else self.seconds * self.variance
        return biased, size if np.isfinite(size) else np.inf

    def doubtful(self, tol: float) -> bool:
        """Whether its bias may be above ``tol``, for all that is known."""
        decided = self.bias.decided(tol)
        return decided is False or (decided is None and not self.unbiased)


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


class Lap(NamedTuple):
    """Rows of gradients and what each measurement took."""

    rows: np.ndarray
    off: np.ndarray  # the same less exact gradients of the contexts met: their bias, without the noise of contexts
    seconds: list[float]
    compile_seconds: float
    shared: bool = False  # by the program that measures many


def _measure(key: Key, call: Callable[[Key], Any], before: Lap | None, times: int, shared: bool) -> Lap:
    """``times`` more measurements of CALLS_A_LAP calls: ``call`` stacks gradients, and exact ones of the contexts met.

    The first of all compiles.
    """
    rows, off, seconds, compile_seconds, _ = before or Lap(np.zeros(0), np.zeros(0), [], 0.0)
    for i in range(times + (before is None)):
        started = time.perf_counter()
        key_i = random.fold_in(key, len(seconds) + 1 if len(rows) else 0)
        grad, exact = jax.block_until_ready(call(key_i))
        took = time.perf_counter() - started
        if before is None and i == 0:
            compile_seconds = took
        else:
            seconds = [*seconds, took / CALLS_A_LAP]
        new = flat_rows(grad), flat_rows(grad) - np.asarray(exact)
        rows, off = new if not len(rows) else (np.concatenate([rows, new[0]]), np.concatenate([off, new[1]]))
    return Lap(rows, off, seconds, compile_seconds, shared)


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


class Bench(NamedTuple):
    """Where candidates are measured."""

    problem: Problem
    x: X
    exact: Reference
    key: Key
    left: Callable[[], float]  # seconds
    tol: float
    lanes: Lanes  # contexts of the candidates that one program measures

    def alone(self, each: Candidate, before: Lap | None, times: int, timed: bool = True) -> Lap:
        """By a program of its own, optimised as that of a run where its time counts."""
        where = self.problem, self.x, self.exact.contexts, self.exact.grads
        program = optimised_means if timed else means

        def call(key: Key) -> tuple[Any, Any]:
            found = program(key, *where, estimator=each.estimator, batches=CALLS_A_LAP)
            return found.grad, found.met

        return _measure(self.key, call, before, times, shared=False)

    def exactly(self, each: Candidate, times: int) -> Lap:
        """One that takes all outcomes: whether that leaves no noise is told by a program that compiles soon."""
        return self.alone(each, None, times, timed=not little_work(self.key, self.problem, self.x))

    def together(self, each: Candidate, before: Lap | None, times: int) -> Lap:
        """By the program that measures sample averages of any size; in its blocks they take longer than alone."""
        where = self.problem, self.x, self.exact.contexts, calls_of(each.n or 1, CALLS_A_LAP), self.lanes
        mean = lambda a: np.mean(np.asarray(a, np.float64), axis=1)  # over the contexts of a call

        def call(key: Key) -> tuple[Any, Any]:
            grads, _, exact = averages(key, *where, self.exact.grads)
            return jax.tree.map(mean, grads), exact

        return _measure(self.key, call, before, times, shared=True)

    def trial(self, each: Candidate, lap: Lap) -> Trial:
        bias = relative_bias(lap.off, self.exact.scale, self.exact.stderr)
        variance, seconds = float(lap.rows.var(0, ddof=1).sum()), float(np.median(lap.seconds))
        about = lap.compile_seconds, seconds, variance, bias, len(lap.rows), each.unbiased
        return Trial(each.name, each.estimator, *about)

    def noiseless(self, trial: Trial) -> bool:
        """Whether less variance would not help: no bias, and calls that hardly differ."""
        return trial.bias.decided(self.tol) is True and trial.variance <= (NOISELESS * self.exact.scale) ** 2


def _of_the_library(bench: Bench, contexts: int, devices: int, key: Key) -> tuple[list[Candidate], dict[str, Lap]]:
    """The library's own candidates, and first laps of those that need no program of their own.

    Where all outcomes are known, they are taken first, and alone where that leaves no noise.
    """
    made, laps = candidates(bench.problem, contexts, devices), {}
    if bench.problem.support is not None:
        laps[made[0].name] = bench.exactly(made[0], 1)
        if bench.noiseless(bench.trial(made[0], laps[made[0].name])):
            return made[:1], laps
        if little_work(bench.key, bench.problem, bench.x):
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
