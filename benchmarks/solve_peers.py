"""`solve` against what people do today, everything included.

Everybody starts at x1 with nothing compiled and stops where |grad F|, judged exactly on fixed contexts, is a given
share of its first value. `solve` runs as it is, from several keys, and stops by its own certificate, whose time is in
its row. Peers with Adam are told by the judge when they have arrived, for nothing; they try three learning rates for a
while and run with the best of them from another key. L-BFGS runs on a sample of a size that a user guesses, drawn once.
Everyone has a process of its own, pinned to one core where `taskset` says so, and runs of `solve` take turns with the
others. Seconds are those of the CPU, which other programs on the machine disturb less than a clock. A peer's program
that serves two targets is compiled once and counted in both. Peers have `BOUND` CPU seconds for each target, from the
moment when the problem is there; judging counts nowhere, and nobody's imports do. Who has not arrived then took more.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import targets
from common import RESULTS, installed, median, slug
from jax import random
from rivals import jaxopt_average, jaxopt_cost, jaxopt_drawn

import bilevelax as bx

BOUND = 40.0  # CPU seconds of a contestant for a target, without judging
REPEATS = 3  # of `solve`
APART, FAR_APART, COSTLY = 4, 1, 1024  # looks are a quarter of the way apart, or as far again where many are judged
CONTEXTS = 1024  # of a fixed sample where there are too many, or infinitely many, to take all
MANY = 10_000
IMPORTED = ("jaxopt", "scipy.optimize")  # before the clock starts, by everybody, though only some need them


class Effort(NamedTuple):
    pilot: float  # CPU seconds of a run that tunes a learning rate
    limit: float  # of all that a peer does for a target


QUICK, FULL = Effort(0.3, 6.0), Effort(1.0, BOUND)


class Watch:
    """CPU seconds since it was made."""

    def __init__(self) -> None:
        self.began = time.process_time()

    def taken(self) -> float:
        return time.process_time() - self.began


class Contest(NamedTuple):
    """A regime with its targets, the easiest first: shares of |grad F(x1)|."""

    regime: targets.Regime
    shares: tuple[float, ...]


def contests(quick: bool, names: Sequence[str] = ()) -> list[Contest]:
    """The four regimes of docs/choosing.md, two of them with harder targets too; or those named."""
    if quick:
        return [Contest(regime, (0.1,)) for regime in targets.regimes(True).values()]
    all_of_them = lambda regime: regime._replace(contexts=max(regime.contexts, regime.app.problem.n_contexts or 0))
    hard = ("20 contexts, full batch", "10,000 contexts")
    return [
        Contest(all_of_them(regime), (1e-2, 1e-3) if name in hard else (1e-2,))
        for name, regime in targets.regimes(False, names).items()
    ]


class Judge(NamedTuple):
    """x -> |grad F(x)| / |grad F(x1)|."""

    judged: Any
    first: float

    def __call__(self, x: Any) -> float:
        with uncounted():
            share = self.judged(x)[1] / self.first
        return share if np.isfinite(share) else np.inf


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """What is done here does not count against `end_after`."""
    (soft, hard), watch = resource.getrlimit(resource.RLIMIT_CPU), Watch()
    if soft == resource.RLIM_INFINITY:
        yield
        return
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CPU, (soft + math.ceil(watch.taken()), hard))


def end_after(seconds: float) -> None:
    """The system ends this process after so many more CPU seconds."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds), hard))


class Run(NamedTuple):
    """How often a learning rate was looked at, and what was seen: seconds and the share that was left."""

    rate: float
    looks: list[tuple[float, float]]

    def arrival(self, share: float) -> float | None:
        """Seconds until the target, None where it was not met."""
        return next((taken for taken, left in self.looks if left <= share), None)

    def merit(self, share: float) -> tuple[float, float]:
        """Smaller is better: who arrives first, else who comes nearest."""
        met = self.arrival(share)
        return (max(1.0, min(left for _, left in self.looks) / share), self.looks[-1][0] if met is None else met)


def steps_of(one: targets.Compiled, rate: float, seed: int, seconds: float, judge: Judge, share: float) -> Run:
    """Adam until the share is reached or the time is over, without that of judging."""
    carry, taken, looks = one.first(rate), 0.0, []
    apart = APART if one.regime.contexts <= COSTLY else FAR_APART
    while taken < seconds or not looks:
        for n in targets.chunks(max(targets.FIRST, int(carry.t) // apart)):
            watch = Watch()
            carry, _ = one.chunk(carry, random.key(seed), n)
            taken = taken + watch.taken()
        looks.append((taken, judge(carry.x)))
        if looks[-1][1] <= share or np.isinf(looks[-1][1]):
            break
    return Run(rate, looks)


def row(contest: Contest, share: float, who: str, taken: float | None, left: float, told: str = "-") -> Any:
    """``taken``: until the target, or until who did not meet it gave up."""
    target, arrived = f"{contest.regime.name}, to {share:g}", "yes" if left <= share else "no"
    missing = left / share if np.isfinite(left) else None
    return {"target": target, "who": who, "CPU s": taken, "arrived": arrived, "left": missing, "told": told}


def ours(contest: Contest, judge: Judge, repeat: int) -> list[dict[str, Any]]:
    (share,), app = contest.shares, contest.regime.app
    watch = Watch()
    result = bx.solve(app.problem, app.x1, key=random.key(100 + repeat), tol=share, progress=False)
    return [row(contest, share, "solve", watch.taken(), judge(result.x), result.reason)]


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
    rows, finals = [], {}
    for share in contest.shares:
        best = min(pilots, key=lambda run: run.merit(share))
        spent = [run.arrival(share) for run in pilots]
        searched = sum(run.looks[-1][0] if met is None else met for run, met in zip(pilots, spent, strict=True))
        if best.rate not in finals:
            left_over = effort.limit - prepared - searched
            finals[best.rate] = steps_of(one, best.rate, 100, left_over, judge, hardest)
        looks = finals[best.rate].looks
        end, left = next((look for look in looks if look[1] <= share), looks[-1])
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


def rows_of(who: str, contest: Contest, effort: Effort, repeat: int) -> list[dict[str, Any]]:
    """One contestant on all targets of a regime."""
    regime, n = contest.regime, samples(contest.regime)
    for module in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    judged = targets.judge(regime)
    judge = Judge(judged, judged(regime.app.x1)[1])
    end_after(BOUND * len(contest.shares))
    if who == "solve":
        return ours(contest, judge, repeat)
    if who == FIXED:
        return fixed_sample(contest, judge)
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "minimize, saa": lambda: {f"n={n}": regime.batch(bx.saa(n))},
        "minimize, auto": lambda: targets.chosen(regime),
        "jaxopt, Adam": lambda: {f"n={n}": jaxopt_average(n, regime.m)},
    }
    return adam(who, made[who], contest, effort, judge)


FIXED = "jaxopt, L-BFGS"  # starts anew for each target
PEERS = ("minimize, saa", "minimize, auto", *(("jaxopt, Adam", FIXED) if installed("jaxopt") else ()))


def compare(contest: Contest, quick: bool) -> list[dict[str, Any]]:
    """`solve` before each peer and, target by target, as often as is asked for; its row has the medians."""
    single = [contest._replace(shares=(share,)) for share in contest.shares]
    runs: list[list[dict[str, Any]]] = [[] for _ in single]
    found = []
    for i in range(max(len(PEERS), REPEATS)):
        for one, rows in zip(single, runs, strict=True):
            rows += alone("solve", one, quick, i) if i < REPEATS else []
        for one in single if PEERS[i : i + 1] == (FIXED,) else [contest][: i < len(PEERS)]:
            found += alone(PEERS[i], one, quick)
    return [together(rows) for rows in runs] + found


def together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of equal calls from several keys: medians, and the worst that was left."""
    seconds = [row["CPU s"] for row in rows]
    arrived = "yes" if all(row["arrived"] == "yes" for row in rows) else "no"
    told = ", ".join(sorted({row["told"] for row in rows}))
    rest = {"arrived": arrived, "left": max(row["left"] for row in rows), "told": told}
    return {**rows[0], "CPU s": median(seconds), **rest, "least": min(seconds), "most": max(seconds)}


def alone(who: str, contest: Contest, quick: bool, repeat: int = 0) -> list[dict[str, Any]]:
    """The rows of a process of its own, which has `BOUND` CPU seconds a target; a second call reads them from disk."""
    shares = ",".join(map(str, contest.shares))
    words = [contest.regime.name, who, shares, str(repeat), *["--quick"] * quick]
    place = RESULTS / "solve_peers" / f"{slug(' '.join(words))}.json"  # remove the folder to start over
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(measured(who, contest, words)))
    return json.loads(place.read_text())  # type: ignore[no-any-return]


def measured(who: str, contest: Contest, words: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGXCPU:
        ended = None, np.inf, f"ended after {BOUND:g} CPU s"
        return [row(contest, share, who, *ended) for share in contest.shares]
    if done.returncode:
        raise RuntimeError(f"{who} on {contest.regime.name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


if __name__ == "__main__":
    name, who, shares, repeat, *quick = sys.argv[1:]
    (contest,) = contests(bool(quick), [name])
    contest = contest._replace(shares=tuple(map(float, shares.split(","))))
    print(json.dumps(rows_of(who, contest, QUICK if quick else FULL, int(repeat))))
