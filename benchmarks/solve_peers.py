"""`solve` against what people do today, everything included.

Everybody starts at x1 with nothing compiled and stops where |grad F|, judged exactly on fixed contexts, is a given
share of its first value. `solve` runs once, as it is, and stops by its own certificate, whose time is in its row.
Peers with Adam are told by the judge when they have arrived, for nothing; they try three learning rates for a while
and run with the best of them from another key. L-BFGS runs on a sample of a size that a user guesses, drawn once.
Everyone has a process of its own.
``in all`` has compilation, search and run; ``CPU s`` is the same in seconds of all cores, which other programs on the
machine disturb less. A program that serves two targets of a regime is compiled once and counted in both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import targets
from common import installed
from jax import random
from rivals import jaxopt_average, jaxopt_cost, jaxopt_drawn

import bilevelax as bx

BOUND = 150  # wall seconds of a contestant on a regime, judging included
APART = 4  # looks are a quarter of the way apart: judging 10,000 contexts takes longer than steps
CONTEXTS = 1024  # of a fixed sample where there are too many, or infinitely many, to take all
MANY = 10_000


class Effort(NamedTuple):
    pilot: float  # seconds of a run that tunes a learning rate
    limit: float  # of a run that counts


QUICK, FULL = Effort(0.3, 1.0), Effort(1.0, 6.0)


class Watch:
    """Seconds since it was made: (wall, CPU)."""

    def __init__(self) -> None:
        self.began = self.now()

    @staticmethod
    def now() -> np.ndarray:
        return np.asarray([time.perf_counter(), time.process_time()])

    def taken(self) -> np.ndarray:
        return self.now() - self.began


class Contest(NamedTuple):
    """A regime with its targets, the easiest first: shares of |grad F(x1)|."""

    regime: targets.Regime
    shares: tuple[float, ...]


def contests(quick: bool) -> list[Contest]:
    """The four regimes of docs/choosing.md, two of them with harder targets too."""
    if quick:
        return [Contest(regime, (0.1,)) for regime in targets.regimes(True).values()]
    four = targets.regimes(False)
    four["10,000 contexts"] = four["10,000 contexts"]._replace(contexts=10_000)
    hard = ("20 contexts, full batch", "10,000 contexts")
    return [Contest(regime, (1e-2, 1e-3) if name in hard else (1e-2,)) for name, regime in four.items()]


class Judge(NamedTuple):
    """x -> |grad F(x)| / |grad F(x1)|."""

    judged: Any
    first: float

    def __call__(self, x: Any) -> float:
        share = self.judged(x)[1] / self.first
        return share if np.isfinite(share) else np.inf


class Run(NamedTuple):
    """How often a learning rate was looked at, and what was seen: seconds (wall, CPU) and the share that was left."""

    rate: float
    looks: list[tuple[np.ndarray, float]]

    def arrival(self, share: float) -> np.ndarray | None:
        """Seconds until the target, None where it was not met."""
        return next((taken for taken, left in self.looks if left <= share), None)

    def merit(self, share: float) -> tuple[float, float]:
        """Smaller is better: who arrives first, else who comes nearest."""
        met = self.arrival(share)
        return (max(1.0, min(left for _, left in self.looks) / share), self.looks[-1][0][0] if met is None else met[0])


def steps_of(one: targets.Compiled, rate: float, seed: int, seconds: float, judge: Judge, share: float) -> Run:
    """Adam until the share is reached or the time is over, without that of judging."""
    carry, taken, looks = one.first(rate), np.zeros(2), []
    while taken.min() < seconds:  # wall, or CPU where other programs have the cores
        for n in targets.chunks(max(targets.FIRST, int(carry.t) // APART)):
            watch = Watch()
            carry, _ = one.chunk(carry, random.key(seed), n)
            taken = taken + watch.taken()
        looks.append((taken, judge(carry.x)))
        if looks[-1][1] <= share or np.isinf(looks[-1][1]):
            break
    return Run(rate, looks)


def row(contest: Contest, share: float, who: str, taken: np.ndarray, left: float, told: str = "-") -> Any:
    """``taken`` is (wall, CPU): until the target, or until who did not meet it gave up."""
    wall, cpu = map(float, taken)
    target, arrived = f"{contest.regime.name}, to {share:g}", "yes" if left <= share else "no"
    found = {"target": target, "who": who, "in all": wall, "CPU s": cpu}
    return found | {"arrived": arrived, "left": left / share, "told": told}


def ours(contest: Contest, judge: Judge) -> list[dict[str, Any]]:
    rows, app = [], contest.regime.app
    for share in contest.shares:
        jax.clear_caches()
        watch = Watch()
        result = bx.solve(app.problem, app.x1, key=random.key(100), tol=share, progress=False)
        rows.append(row(contest, share, "solve", watch.taken(), judge(result.x), result.reason))
    return rows


def adam(
    who: str, made: Callable[[], dict[str, Any]], contest: Contest, effort: Effort, judge: Judge
) -> list[dict[str, Any]]:
    """The best of three rates, then a run from another key."""
    jax.clear_caches()
    watch = Watch()
    ((label, estimator),) = made().items()
    one, _ = targets.compiled(contest.regime, estimator)
    prepared = watch.taken()
    hardest = contest.shares[-1]
    pilots = [steps_of(one, rate, 1, effort.pilot, judge, hardest) for rate in targets.RATES]
    rows = []
    for share in contest.shares:
        best = min(pilots, key=lambda run: run.merit(share))
        spent = [run.arrival(share) for run in pilots]
        searched = sum(run.looks[-1][0] if met is None else met for run, met in zip(pilots, spent, strict=True))
        final = steps_of(one, best.rate, 100, effort.limit, judge, share)
        end, left = final.looks[-1]
        rows.append(row(contest, share, f"{who} {label}, rate {best.rate:g}", prepared + searched + end, left))
    return rows


def fixed_sample(contest: Contest, judge: Judge) -> list[dict[str, Any]]:
    """A user's ten lines: jaxopt's L-BFGS, outside and inside, until the sample's gradient is half of what is asked."""
    import jaxopt

    problem, x1 = contest.regime.app.problem, contest.regime.app.x1
    n = samples(contest.regime)
    m = problem.n_contexts if n == "all" and problem.n_contexts <= MANY else CONTEXTS
    rows = []
    for share in contest.shares:
        jax.clear_caches()
        watch = Watch()
        drawn = jax.jit(jaxopt_drawn(n, m))(random.key(7), problem)
        cost = jaxopt_cost(n)
        loss = lambda x, drawn: cost(problem, x, drawn)  # noqa: B023
        solver = jaxopt.LBFGS(loss, maxiter=200, tol=share * judge.first / 2)
        x = jax.block_until_ready(solver.run(x1, drawn).params)
        taken, left = watch.taken(), judge(x)
        rows.append(row(contest, share, f"jaxopt L-BFGS, {m} contexts", taken, left))
    return rows


def samples(regime: targets.Regime) -> int | str:
    """Of a context, whoever asks: all where they are stored."""
    return "all" if regime.app.problem.support is not None else 4 * regime.n


def rows_of(who: str, contest: Contest, effort: Effort) -> list[dict[str, Any]]:
    """One contestant on all targets of a regime."""
    regime, n = contest.regime, samples(contest.regime)
    judged = targets.judge(regime)
    judge = Judge(judged, judged(regime.app.x1)[1])
    if who in FIXED:
        return FIXED[who](contest, judge)
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "minimize, saa": lambda: {f"n={n}": regime.batch(bx.saa(n))},
        "minimize, auto": lambda: targets.chosen(regime),
        "jaxopt, Adam": lambda: {f"n={n}": jaxopt_average(n, regime.m)},
    }
    return adam(who, made[who], contest, effort, judge)


FIXED = {"solve": ours, "jaxopt, L-BFGS": fixed_sample}
WHO = ("solve", "minimize, saa", "minimize, auto", *(("jaxopt, Adam", "jaxopt, L-BFGS") if installed("jaxopt") else ()))


def compare(contest: Contest, quick: bool) -> Iterator[list[dict[str, Any]]]:
    """Rows of one after the other, each in a process of its own, which is ended after `BOUND` seconds."""
    for who in WHO:
        command = [sys.executable, __file__, contest.regime.name, who, *["--quick"] * quick]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=True)
        except subprocess.TimeoutExpired:
            ended = np.full(2, np.nan), np.inf, f"ended after {BOUND} s"
            yield [row(contest, share, who, *ended) for share in contest.shares]
        else:
            yield json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    name, who, *quick = sys.argv[1:]
    (contest,) = [contest for contest in contests(bool(quick)) if contest.regime.name == name]
    print(json.dumps(rows_of(who, contest, QUICK if quick else FULL)))
