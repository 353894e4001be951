"""Individual temperatures against one fixed temperature: linear probes on alphabets that were not trained on.

Omniglot, 32 principal components, one hidden layer of 64, embeddings of 32. Not a timing.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
import optax
from jax import random
from published import Row, compared
from sklearn.linear_model import LogisticRegression

import bilevelax as bx
from bilevelax.applications import contrastive
from bilevelax.datasets import load_omniglot

STEPS, QUICK_STEPS = 300, 60
SEEDS, QUICK_SEEDS = 3, 2
VALIDATION = 6  # of the 30 background alphabets: the settings are chosen on these
FIXED = tuple({"tau0": tau, "tau_max": tau} for tau in (0.05, 0.1, 0.2))
OWN = tuple({"rho": rho} for rho in (0.5, 1.0, 2.0))
SIZES = {"negatives": 64, "width": 64, "dim": 32}
LABELLED = 5  # drawings of each character that a probe learns from, of 20
ESTIMATOR = bx.minibatch(bx.saa(1), 64)  # 64 anchors, each with one set of 64 negatives
Alphabets = list[np.ndarray]  # of each, (characters, 20, d)


def alphabets(subset: str) -> Alphabets:
    found = load_omniglot("pca", 32, subset)
    order = np.argsort(found.labels, kind="stable")
    rows = found.features[order].reshape(-1, 20, 32)
    groups = np.asarray(found.groups)
    return [rows[groups == each] for each in np.unique(groups)]


def probe(embed: Any, tests: Alphabets) -> np.ndarray:
    """Accuracy in each alphabet of softmax regression on embeddings of a few drawings of each character."""
    found = []
    for rows in tests:
        e = np.asarray(embed(rows.reshape(-1, rows.shape[2]))).reshape(*rows.shape[:2], -1)
        e = (e - e[:, :LABELLED].mean(axis=(0, 1))) / e[:, :LABELLED].std(axis=(0, 1))
        labels = np.repeat(np.arange(len(rows)), 20).reshape(len(rows), 20)
        flat = lambda a, d=e.shape[2]: a.reshape(-1, d)
        model = LogisticRegression(C=0.1, max_iter=200).fit(flat(e[:, :LABELLED]), labels[:, :LABELLED].ravel())
        found.append(model.score(flat(e[:, LABELLED:]), labels[:, LABELLED:].ravel()))
    return np.array(found)


class Bench:
    """Trains with settings and a seed; one program for all."""

    def __init__(self, steps: int) -> None:
        background = alphabets("background")
        self.valid, train = background[:VALIDATION], np.concatenate(background[VALIDATION:])
        self.scale = train.std()
        self.train = train / self.scale
        self.steps, self.rule = steps, optax.adam(optax.cosine_decay_schedule(3e-3, steps))

    def embedding(self, settings: dict[str, float], seed: int) -> Any:
        app = contrastive.make(self.train, self.train[:2], seed=seed, **SIZES, **settings)
        problem = app.problem.replace(mu_g=None, L_g1=None)  # not needed here, and part of a program's name
        run = bx.minimize(
            problem, ESTIMATOR, self.rule, app.x1, key=random.key(seed), T=self.steps, every=self.steps, progress=False
        )
        return jax.jit(lambda rows: jax.vmap(lambda a: contrastive.embed(run.x, a))(rows / self.scale))

    def best(self, grid: Any) -> dict[str, float]:
        """By the probe on validation alphabets, first seed."""
        scores = [float(probe(self.embedding(settings, 0), self.valid).mean()) for settings in grid]
        print(*zip(grid, np.round(scores, 4), strict=True), sep="\n", flush=True)
        return grid[int(np.argmax(scores))]


def interval(values: np.ndarray) -> str:
    """Mean over alphabets and seeds; 95 % over alphabets."""
    each = values.mean(axis=0)
    return f"{each.mean():.3f} +- {1.96 * each.std(ddof=1) / len(each) ** 0.5:.3f}"


def run(quick: bool = False) -> None:
    begun = time.process_time()
    bench, tests = Bench(QUICK_STEPS if quick else STEPS), alphabets("evaluation")
    fixed, own = (FIXED[1], OWN[1]) if quick else (bench.best(FIXED), bench.best(OWN))
    seeds = range(1, 1 + (QUICK_SEEDS if quick else SEEDS))
    ours, one = (
        np.stack([probe(bench.embedding(settings, seed), tests) for seed in seeds]) for settings in (own, fixed)
    )
    raw = probe(lambda rows: rows, tests)
    difference = interval(ours - one)
    row = Row(
        "linear-probe accuracy on 20 held-out alphabets of Omniglot, 5 drawings a character; larger is better",
        "none found on Omniglot",
        f"{interval(ours)} (a temperature for each anchor, rho = {own['rho']})",
        f"{interval(one)} (one temperature, {fixed['tau0']}); {interval(raw[None])} (the components themselves)",
        time.process_time() - begun,
    )
    notes = (
        f"{len(seeds)} seeds, 95 % intervals over alphabets. rho and the fixed temperature were each chosen from three "
        f"on {VALIDATION} background alphabets. Paired difference: {difference}.",
        "Seconds are CPU seconds of the whole command, on a shared machine.",
    )
    compared("contrastive", "Contrastive learning with individual temperatures", [row], notes, quick=quick)


if __name__ == "__main__":
    run()
