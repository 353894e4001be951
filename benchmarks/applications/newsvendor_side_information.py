"""The newsvendor with side information of Yang et al. (2022): ours at its defaults beside the published numbers.

Demand depends on one direction of the contexts. 10 instances (directions), 10,000 test rows, holding 0.6, backlog 1;
cost, smaller is better. Nothing is tuned on test rows: `RobustNewsvendor` chooses by later training rows.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import published
from pairs import BACKLOG, HOLDING, QUANTILE, paid, side_information

from bilevelax.sklearn import RobustNewsvendor, baselines

SIZES = {(400, 10): (0.682, 0.722), (400, 20): (0.714, 0.776), (1000, 10): (0.672, 0.704)}  # best; without own tuning
INSTANCES, TEST = 10, 10_000
BASELINES = ("forest", "boosted quantile", "linear quantile", "neighbours")


def instance(seed: int, rows: int, columns: int, test: int) -> tuple[Any, ...]:
    """Contexts and demands to learn from and to pay on, and the test rows' mean demand; contexts in training units."""
    rng = np.random.default_rng(seed)
    beta = rng.uniform(-0.1, 0.1, columns)
    (X, y, _), (new, asked, mean) = (side_information(rng, beta, n) for n in (rows, test))
    centre, scale = X.mean(axis=0), X.std(axis=0)
    return (X - centre) / scale, y, (new - centre) / scale, asked, mean


def ways(seed: int, rows: int, columns: int, test: int) -> tuple[dict[str, float], str]:
    """(cost of each way, what ours chose)."""
    X, y, new, asked, mean = instance(seed, rows, columns, test)
    ours = RobustNewsvendor(HOLDING, BACKLOG, random_state=seed).fit(X, y)
    rivals = baselines(HOLDING, BACKLOG, random_state=seed)
    found = {"ours": paid(ours.predict(new), asked)}
    found |= {name: paid(rivals[name].fit(X, y).predict(new), asked) for name in BASELINES}
    found["who knows the mean"] = paid(mean + QUANTILE, asked)
    chosen = ours.chosen_
    return found, f"{chosen['policy']}, {chosen['conditional']}, {chosen['ambiguity']}, {ours.fallback_}"


def shown(values: list[float]) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{np.mean(values):.3f} ± {error:.3f}"


def run(quick: bool = False) -> None:
    warnings.simplefilter("ignore")
    times, test = (1, 2_000) if quick else (INSTANCES, TEST)
    rows, choices = [], []
    for (n, d), (best, untuned) in SIZES.items():
        if quick and n * d > 4_000:
            continue
        started, found = time.process_time(), []
        for seed in range(times):
            costs, chosen = ways(seed, n, d, test)
            found.append(costs)
            choices.append(chosen)
            print(n, d, seed, chosen, {name: round(cost, 3) for name, cost in costs.items()}, flush=True)
        all_of = {name: [each[name] for each in found] for name in found[0]}
        rival = min(BASELINES, key=lambda name: np.mean(all_of[name]))
        rows.append(
            published.Row(
                f"cost, N = {n}, d = {d}; oracle {np.mean(all_of['who knows the mean']):.3f}",
                f"{best} Causal-SDRO soft forest, own tuning; {untuned} without",
                shown(all_of["ours"]),
                f"{shown(all_of[rival])} {rival}",
                time.process_time() - started,
            )
        )
    counts = ", ".join(f"{choice}: {choices.count(choice)}" for choice in sorted(set(choices)))
    notes = [
        "Mean and standard error over instances; published numbers are means from the authors' result files.",
        f"Chosen by rolling origin (policy, conditional, ambiguity, fallback): {counts}.",
        "Baselines at their defaults. CPU seconds, shared machine.",
    ]
    published.compared("newsvendor_side_information", "Newsvendor with side information", rows, notes, quick=quick)


if __name__ == "__main__":
    run()
