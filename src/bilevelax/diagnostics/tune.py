"""Which estimator, which settings? Measured on the problem at hand, within a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random

from bilevelax.diagnostics.bias import Bias, relative_bias
from bilevelax.diagnostics.certify import batch_means
from bilevelax.diagnostics.reference import QUICK, Reference, flat_rows, only_contexts, reference
from bilevelax.diagnostics.tables import number, percent, text_table
from bilevelax.errors import require_integer, require_key, require_positive
from bilevelax.estimate import Estimator
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.inverse import summed_neumann
from bilevelax.lower import epoch_sgd
from bilevelax.minibatch import minibatch
from bilevelax.problem import Key, Problem, X
from bilevelax.validate import as_arrays, check_shapes

CONTEXTS = 32
CALLS = 8  # of an estimator in one measurement
rare = partial(antithetic_mlmc, levels=2, factor=8)  # few, large corrections: half the work x variance of halvings


class Trial(NamedTuple):
    """What is known of one candidate."""

    name: str
    estimator: Estimator
    compile_seconds: float
    seconds: float  # of one call, the median
    variance: float  # of one call, the trace of its covariance
    bias: Bias  # relative to the size of the gradient's terms
    calls: int

    def score(self, tol: float) -> tuple[bool, float]:
        """Smaller is better: no bias above ``tol`` that can be seen, then time x variance; infinite if not finite."""
        biased = self.bias.decided(tol) is False
        size = self.bias.estimate if biased else self.seconds * self.variance
        return biased, size if np.isfinite(size) else np.inf


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
        rows = [{**t._asdict(), "estimator": None, "bias": list(map(float, t.bias))} for t in self.trials]
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
        return f"Chosen in {self.seconds:.1f} s: {self.choice}.{warning}{left}\n{text_table(columns, rows)}"


class Candidate(NamedTuple):
    """An estimator by name; ``weight`` is how long it compiles, roughly and relative to `saa`."""

    name: str
    estimator: Estimator
    weight: float = 1.0

    def over(self, contexts: int, how: str) -> Candidate:
        """The mean over so many contexts."""
        spread = f", {contexts} contexts" + ", spread" * (how == "spread")
        return self._replace(name=self.name + spread, estimator=minibatch(self.estimator, contexts, contexts=how))


def candidates(problem: Problem, contexts: int, devices: int = 1) -> list[Candidate]:
    """Estimators that can run on the problem, most promising first; the rates are typical of `correction_rate`.

    Of no more contexts than a minibatch has, each gets its share of it: once where its gradient is
    exact, so that a step takes the full batch, else as often as fills the minibatch.
    """
    n = problem.n_contexts
    full = lambda lanes, each: -(-lanes // each) * each  # up to a multiple
    once, often, how = (
        (contexts, contexts, "independent") if n is None or n > contexts else (n, full(contexts, n), "spread")
    )
    once, often = full(once, devices), full(often, devices)
    exact = [] if problem.support is None else [Candidate("saa(n='all')", saa("all")).over(once, how)]
    named = [
        Candidate("saa(n=32)", saa(32)),
        Candidate("saa(n=8)", saa(8)),
        Candidate("antithetic_mlmc(n0=8)", rare(8, correction_rate=0.05), 2.5),
        Candidate("saa(n=128)", saa(128)),
        Candidate("antithetic_mlmc(n0=32)", rare(32, correction_rate=0.01), 2.5),
    ]
    if problem.mu_g is not None and problem.L_g1 is not None:
        lower, inverse = problem.lower or epoch_sgd(batch=8), problem.inverse or summed_neumann()
        named += [
            Candidate("rt_mlmc(K=8), 8 samples a draw", rt_mlmc(8, lower, inverse, batch=8), 5.0),
            Candidate("rt_mlmc(K=8)", rt_mlmc(8), 5.0),
        ]
    return [*exact, *(each.over(often, how) for each in named)]


def named_candidate(problem: Problem, choice: str, devices: int) -> Estimator:
    """The candidate that `tune` called by this name."""
    return {each.name: each.estimator for each in candidates(problem, CONTEXTS, devices)}[choice]


class Lap(NamedTuple):
    """Rows of gradients and what each measurement took."""

    rows: np.ndarray
    seconds: list[float]
    compile_seconds: float


def _measure(key: Key, problem: Problem, x: X, estimator: Estimator, before: Lap | None, times: int) -> Lap:
    """``times`` more measurements of CALLS calls; the first of all compiles."""
    rows, seconds, compile_seconds = before or (None, [], 0.0)
    for i in range(times + (before is None)):
        started = time.perf_counter()
        key_i = random.fold_in(key, len(seconds) + 1 if rows is not None else 0)
        new = jax.block_until_ready(batch_means(key_i, problem, x, estimator=estimator, batches=CALLS))
        took = time.perf_counter() - started
        if before is None and i == 0:
            compile_seconds = took
        else:
            seconds = [*seconds, took / CALLS]
        rows = flat_rows(new) if rows is None else np.concatenate([rows, flat_rows(new)])
    assert rows is not None
    return Lap(rows, seconds, compile_seconds)


def _trial(name: str, estimator: Estimator, lap: Lap, exact: Reference) -> Trial:
    bias = relative_bias(lap.rows - exact.grad, exact.scale, exact.stderr)
    variance = float(lap.rows.var(0, ddof=1).sum())
    return Trial(name, estimator, lap.compile_seconds, float(np.median(lap.seconds)), variance, bias, len(lap.rows))


def tune(
    problem: Problem,
    x: X,
    *,
    key: Key,
    budget_seconds: float = 10.0,
    contexts: int = CONTEXTS,
    tol: float = 0.05,
    among: dict[str, Estimator] | None = None,
    devices: int = 1,
) -> Tuned:
    """Choose an estimator by measurement at x: least time x variance among those without visible bias.

    Each candidate is a `minibatch` of ``contexts``; where there are no more than that, each has its share of
    it, and with all its outcomes known the gradient is exact. All that the budget allows are measured a
    little, the better half of them twice as long, and so on until one is left or time is up
    (successive halving); a survivor that turns out biased gives way to the best without visible bias.
    Bias is measured against exact gradients of 32 contexts and relative to the size of the
    gradient's terms. Compilation takes most of a small budget: what there is no time for is listed
    in ``skipped``; one candidate is measured whatever the budget.

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
    few, key_rows = only_contexts(problem, exact.contexts), random.fold_in(key, 1)
    measure = partial(_measure, key_rows, few, x)
    left = lambda: budget_seconds - (time.perf_counter() - started)
    chosen = candidates(problem, contexts, devices) if among is None else [Candidate(*each) for each in among.items()]
    trials = best_first(_halved(_first_laps(chosen, measure, left), chosen, exact, measure, left, tol), tol)
    measured = {trial.name for trial in trials}
    skipped = tuple(each.name for each in chosen if each.name not in measured)
    best = trials[0]
    if not np.isfinite(best.score(tol)[1]):
        raise ValueError(
            f"tune needs a candidate whose gradients at x are finite. Got none among {', '.join(sorted(measured))}; "
            "see `check` for what is wrong, or name others in `among`."
        )
    return Tuned(best.estimator, best.name, tuple(trials), skipped, time.perf_counter() - started, tol)


def _first_laps(chosen: list[Candidate], measure: Callable[..., Lap], left: Callable[[], float]) -> dict[str, Lap]:
    """A first measurement of the candidates that there is time to compile; of one, whatever the time."""
    laps: dict[str, Lap] = {}
    unit = 0.0  # seconds of compilation per weight, the most seen
    for each in chosen:
        if not laps or left() > each.weight * unit:
            laps[each.name] = measure(each.estimator, None, 1)
            unit = max(unit, laps[each.name].compile_seconds / each.weight)
    return laps


def _halved(
    laps: dict[str, Lap],
    chosen: list[Candidate],
    exact: Reference,
    measure: Callable[..., Lap],
    left: Callable[[], float],
    tol: float,
) -> list[Trial]:
    """Measure the better half twice as long, and so on; those that stayed longest come first."""
    named = {each.name: each.estimator for each in chosen}
    trials = {name: _trial(name, named[name], lap, exact) for name, lap in laps.items()}
    ranked = lambda names: sorted((trials[name] for name in names), key=lambda trial: trial.score(tol))
    dropped: list[Trial] = []
    alive, times = ranked(trials), 2
    while len(alive) > 1 and left() > 0:
        half, times = -(-len(alive) // 2), 2 * times
        alive, dropped = alive[:half], [*alive[half:], *dropped]
        for name, _, _, seconds, *_ in alive:
            if left() > times * CALLS * seconds:
                laps[name] = measure(named[name], laps[name], times)
                trials[name] = _trial(name, named[name], laps[name], exact)
        alive = ranked(trial.name for trial in alive)
    return [*alive, *dropped]


def best_first(trials: list[Trial], tol: float) -> list[Trial]:
    """Without visible bias before biased: a survivor may have been found out last. The former keep their order."""
    return sorted(trials, key=lambda trial: trial.score(tol) if trial.score(tol)[0] else (False, 0.0))
