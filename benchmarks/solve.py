"""`solve` against what people do today, everything included; how often "certified" is true; real problems; a picture.

Everybody starts at x1 with nothing compiled and stops where |grad F|, judged exactly on fixed contexts, is a given
share of its first value. `solve` runs once, as it is. Peers that take a learning rate try three, with two keys each,
and then run; "in all" has compilation, search and run, without the time of judging. `solve` does not know the judge: it
stops by its own certificate, whose time is in its row, and the judge says whether it was right.

``python benchmarks/solve.py [peers | coverage | problems | picture] ...`` does a part. jaxopt takes part where it is
installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import targets
from common import installed, median, publish
from jax import random
from rivals import jaxopt_average, jaxopt_cost
from solve_problems import newsvendor_rule, norm_ten, ridge_penalties

import bilevelax as bx
from bilevelax.applications import quadratic

REAL = {"ridge penalties": ridge_penalties, "meta-learning, norm 10": norm_ten, "newsvendor rule": newsvendor_rule}
PICTURE = Path(__file__).parents[1] / "docs" / "_static" / "solve.svg"


class Slope(NamedTuple):
    """The target of everybody: a share of |grad F(x1)|."""

    first: float
    share: float

    def missed(self, look: targets.Look) -> float:
        worse = look.slope / (self.share * self.first)
        return worse if np.isfinite(worse) else np.inf

    def reached(self, look: targets.Look) -> bool:
        return self.missed(look) <= 1


class Contest(NamedTuple):
    regime: targets.Regime
    share: float

    @property
    def name(self) -> str:
        return f"{self.regime.name}, to {self.share:g}"


def contests(quick: bool) -> list[Contest]:
    """The four regimes of docs/choosing.md, and two of them with harder targets."""
    if quick:
        return [Contest(regime, 0.1) for regime in targets.regimes(True).values()]
    four = targets.regimes(False)
    four["10,000 contexts"] = four["10,000 contexts"]._replace(contexts=10_000)
    easy = [Contest(regime, 1e-2) for regime in four.values()]
    return [*easy, *(Contest(four[name], 1e-3) for name in ("20 contexts, full batch", "10,000 contexts"))]


def ours(contest: Contest, judged: Any, target: Slope) -> dict[str, Any]:
    jax.clear_caches()
    app, started = contest.regime.app, time.perf_counter()
    result = bx.solve(app.problem, app.x1, key=random.key(100), tol=contest.share, progress=False)
    seconds = time.perf_counter() - started
    slope = judged(result.x)[1]
    row = {"who": "solve", "in all": seconds, "run": result.seconds, "end": slope / target.first}
    return {"target": contest.name, **row, "told": result.reason}


def stochastic(
    who: str, settings: Callable[[], Any], contest: Contest, effort: Any, judged: Any, target: Slope
) -> dict[str, Any]:
    """An estimator with Adam: the best of three rates, then a run from another key."""
    jax.clear_caches()
    found = targets.search(contest.regime, settings, effort, target, judged)  # type: ignore[arg-type]
    best = found.best
    end = best.compiled.run(best.rate, 100, effort.limit, judged, target.reached)[-1]
    total = found.seconds + end.seconds if target.reached(end) else None
    row = {"who": f"{who} {best.label}, rate {best.rate:g}", "in all": total, "run": end.seconds}
    return {"target": contest.name, **row, "end": end.slope / target.first, "told": "-"}


def fixed_sample(contest: Contest, judged: Any, target: Slope) -> dict[str, Any]:
    """A user's ten lines: jaxopt's L-BFGS, outside and inside, on a sample drawn once, of a size that is a guess."""
    import jaxopt

    jax.clear_caches()
    problem, x1 = contest.regime.app.problem, contest.regime.app.x1
    n = "all" if problem.support is not None else 4 * contest.regime.n
    m = problem.n_contexts if problem.n_contexts and problem.n_contexts <= 64 else 1024
    cost = jaxopt_cost(n, m)
    started = time.perf_counter()
    solver = jaxopt.LBFGS(lambda x: cost(random.key(7), problem, x), maxiter=200, tol=1e-6)
    x = jax.block_until_ready(solver.run(x1).params)
    seconds = time.perf_counter() - started
    slope = judged(x)[1] / target.first
    return {
        "target": contest.name,
        "who": f"jaxopt L-BFGS, {m} fixed contexts",
        "in all": seconds if slope <= contest.share else None,
        "run": seconds,
        "end": slope,
        "told": "-",
    }


def against_peers(quick: bool) -> None:
    effort = targets.Effort(0.3, 1.0, 1, 1.0) if quick else targets.Effort(2.0, 15.0, 1, 1.0)
    rows = []
    for contest in contests(quick):
        regime = contest.regime
        judged = targets.judge(regime)
        target = Slope(judged(regime.app.x1)[1], contest.share)
        n = "all" if regime.app.problem.support is not None else 4 * regime.n
        rows.append(ours(contest, judged, target))
        many = {"minimize, saa": lambda regime=regime, n=n: {f"n={n}": regime.batch(bx.saa(n))}}
        many["minimize, auto"] = lambda regime=regime: targets.chosen(regime)
        if installed("jaxopt"):
            many["jaxopt, Adam"] = lambda regime=regime, n=n: {f"n={n}": jaxopt_average(n, regime.m)}
        for who, settings in many.items():
            rows.append(stochastic(who, settings, contest, effort, judged, target))
        if installed("jaxopt"):
            rows.append(fixed_sample(contest, judged, target))
        publish("solve", "solve against peers, everything included", rows, [f"- where not within {effort.limit:g} s."])


def coverage(quick: bool, runs: int = 200) -> None:
    """How often what is told of grad F is true, where grad F is known."""
    rows = []
    for name, settings, tol in (("little noise", {"noise": 0.1}, 0.05), ("much noise", {"noise": 1.0}, 0.1)):
        matrices = quadratic.matrices(**settings)
        problem = quadratic.problem_of(matrices)
        certified, true, covered, seconds = 0, 0, 0, []
        for seed in range(10 if quick else runs):
            key = random.key(seed)
            x1 = 3 * random.normal(random.fold_in(key, 1), (4,))
            started = time.perf_counter()
            result = bx.solve(problem, x1, key=key, tol=tol, progress=False)
            seconds.append(time.perf_counter() - started)
            norm = float(np.linalg.norm(matrices.grad_F(np.asarray(result.x, np.float64))))
            certified += result.certified
            true += result.certified and norm <= result.goal
            covered += result.certificate.low <= norm**2 <= result.certificate.high
        row = {"problem": name, "runs": len(seconds), "certified": certified, "of these true": true}
        rows.append({**row, "intervals that hold": covered, "median s": median(seconds)})
    publish("solve_coverage", "Is certified true?", rows)


def real_problems(quick: bool) -> None:
    """Three problems end to end, with the same call."""
    rows = []
    for name, made in REAL.items():
        jax.clear_caches()
        app, started = made(), time.perf_counter()
        result = bx.solve(app.problem, app.x1, key=random.key(0), budget_seconds=120, progress=False)
        seconds = time.perf_counter() - started
        metrics = "; ".join(
            f"{key} {before:.4g} -> {after:.4g}"
            for (key, before), after in zip(app.metrics(app.x1).items(), app.metrics(result.x).values(), strict=True)
        )
        end = result.certificate.norm_high / result.stages[0].grad
        row = {"problem": name, "in all": seconds, "told": result.reason, "|grad F| at most": end}
        rows.append({**row, "F": result.F.mean, "metrics": metrics})
        publish("solve_problems", "Three real problems, no setting touched", rows)


def picture(quick: bool) -> None:
    """A run: |grad F| against seconds, stages marked."""
    import matplotlib.pyplot as plt

    regime = targets.regimes(True)["continuous contexts"]
    bx.solve(regime.app.problem, regime.app.x1, key=random.key(0), tol=0.3, progress=False)  # compiles
    result = bx.solve(regime.app.problem, regime.app.x1, key=random.key(1), tol=3e-3, progress=False)
    rows, ends = result.history, np.cumsum([stage.seconds for stage in result.stages])
    begins, start = np.concatenate([[0.0], ends[:-1]]), rows[0]["seconds"] / 1.5
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    axes.semilogy([row["seconds"] for row in rows], [row["grad"] for row in rows], "o-", ms=3.5, label="on the sample")
    highs = [stage.high for stage in result.stages]
    axes.hlines(highs, begins, ends, colors="C1", lw=2, label="bound on fresh draws")
    axes.axhline(result.goal, color="C2", ls="--", lw=1, label="asked for")
    for stage, begin, end in zip(result.stages, begins, ends, strict=True):
        axes.axvline(end, color="0.85", lw=0.8, zorder=0)
        place = {"ha": "center", "transform": axes.get_xaxis_transform(), "fontsize": 8}
        axes.text((max(begin, start) * end) ** 0.5, 1.02, f"m = {stage.m}", **place)
    axes.set(xlabel="seconds, without compilation", ylabel="|grad F|", xlim=(start, ends[-1]), xscale="log")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)


PARTS = {"peers": against_peers, "coverage": coverage, "problems": real_problems, "picture": picture}


def run(quick: bool = False, names: Sequence[str] = ("problems", "peers")) -> None:
    for name in names:
        PARTS[name](quick)


if __name__ == "__main__":
    run("--quick" in sys.argv, [word for word in sys.argv[1:] if not word.startswith("--")] or tuple(PARTS))
