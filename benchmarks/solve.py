"""`solve`: against peers, how often "certified" is true, real problems, a picture.

``python benchmarks/solve.py [PART] ...`` does a part, one of `PARTS`; names of regimes after `peers` choose among them.
jaxopt takes part where it is installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import solve_peers
import targets
from common import median, publish
from jax import random
from problems import client_tasks
from solve_problems import newsvendor_rule, norm_ten, ridge_penalties

import bilevelax as bx
from bilevelax.applications import personalized_fl, quadratic

REAL = {"ridge penalties": ridge_penalties, "meta-learning, norm 10": norm_ten, "newsvendor rule": newsvendor_rule}
PICTURE = Path(__file__).parents[1] / "docs" / "_static" / "solve.svg"


def against_peers(quick: bool, names: Sequence[str] = ()) -> None:
    """Regime by regime; some of them where they are named."""
    effort, rows = solve_peers.QUICK if quick else solve_peers.FULL, []
    notes = [
        f"CPU s, of solve the median, least and most of {solve_peers.REPEATS} keys. Who has not arrived gave up, after "
        f"{effort.limit:g} CPU s of steps where it takes steps; left: |grad F| at the end over what was asked for."
    ]
    for contest in solve_peers.contests(quick, names):
        rows += sorted(solve_peers.compare(contest, quick), key=lambda row: row["target"])
        publish("solve_peers", "solve against peers, everything included", rows, notes)  # one takes some minutes


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


def early(quick: bool) -> None:
    """What stages cost whose sample could be overfitted, m < 10 d_x: all that stochastic steps there could save."""
    rows, clients = [], 300 if quick else 10_000
    wide = personalized_fl.make(clients=clients // 4, classes=10, d=64, least=8, most=30)
    for name, app in {"10,000 contexts": client_tasks(clients), "wide": wide}.items():
        result = bx.solve(app.problem, app.x1, key=random.key(100), progress=False)
        d = sum(leaf.size for leaf in jax.tree.leaves(app.x1))
        answered = sum(stage.evaluations * stage.m for stage in result.stages)
        for stage in result.stages:
            row = {"problem": name, "d_x": d, "m": stage.m, "iterations": stage.iterations}
            share = stage.evaluations * stage.m / answered
            rows.append({**row, "fresh |grad F| before": stage.grad, "share of the contexts answered": share})
    publish("solve_early", "Early stages of problems with many parameters", rows)


def picture(quick: bool) -> None:
    """A run: |grad F| against seconds, stages marked."""
    import matplotlib.pyplot as plt

    regime = targets.regimes(True)["continuous contexts"]
    bx.solve(regime.app.problem, regime.app.x1, key=random.key(0), tol=3e-3, progress=False)  # compiles
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


PARTS: dict[str, Callable[..., None]] = {
    "peers": against_peers,
    "coverage": coverage,
    "problems": real_problems,
    "early": early,
    "picture": picture,
}


def run(quick: bool = False, names: Sequence[str] = ("problems", "peers"), of: Sequence[str] = ()) -> None:
    for name in names:
        PARTS[name](quick, of) if name == "peers" else PARTS[name](quick)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    parts = [word for word in words if word in PARTS]
    run("--quick" in sys.argv, parts or tuple(PARTS), [word for word in words if word not in PARTS])
