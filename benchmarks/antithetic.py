"""Time x variance and bias of RT-MLMC, saa and antithetic_mlmc: softmax, newsvendor, continuous contexts.

Every estimator averages 64 contexts a call. The reference gradient is the mean of untruncated,
hence unbiased, antithetic estimates. ``bias`` is relative to its norm, with the noise of both
means taken out (so it may come out as 0); ``error in 1 s`` is bias^2 + variance at the number of
calls that one second allows, which is what an outer step pays for.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
import numpy as np
from common import interleaved, median, publish
from jax import random
from jax.flatten_util import ravel_pytree
from problems import leader_follower, meta, newsvendor

import bilevelax as bx
from bilevelax.applications import Application, meta_learning

M = 64


class Effort(NamedTuple):
    K: int  # of RT-MLMC with single samples
    rounds: int  # timed calls
    calls: int  # of which bias and variance are estimated
    pilot: int  # calls of each candidate when RT-MLMC is tuned
    candidates: tuple[tuple[int, int], ...]  # (K, samples averaged in every draw)


QUICK = Effort(3, 3, 20, 10, ((3, 16),))
FULL = Effort(8, 40, 400, 60, ((5, 4), (5, 16), (5, 64), (7, 4), (7, 16), (7, 64)))


class Sample(NamedTuple):
    """Independent gradients, flat."""

    grads: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.grads.mean(0)

    @property
    def variance(self) -> float:
        return float(self.grads.var(0, ddof=1).sum())

    @property
    def variance_stderr(self) -> float:
        squares = np.sum((self.grads - self.mean) ** 2, axis=1)
        return float(squares.std(ddof=1) / np.sqrt(len(squares)))


class Compiled(NamedTuple):
    """An estimator compiled once, for timing and sampling alike."""

    step: Any
    app: Application

    def __call__(self, i: int) -> Any:
        return self.step(random.key(i), self.app.problem, self.app.x1)

    def sample(self, n: int, seed: int) -> Sample:
        return Sample(np.stack([np.asarray(self(seed * 1_000_000 + i), np.float64) for i in range(n)]))


def compiled(app: Application, estimator: bx.Estimator) -> Compiled:
    batch = bx.minibatch(estimator, M)
    return Compiled(jax.jit(lambda key, problem, x: ravel_pytree(batch.estimate(key, problem, x, ())[0].grad)[0]), app)


def rt_mlmc(K: int, size: int) -> bx.Estimator:
    return bx.rt_mlmc(K, lower=bx.epoch_sgd(batch=size), batch=size)


def milliseconds(calls: dict[str, Compiled], rounds: int) -> dict[str, list[float]]:
    """Of each call, in turns."""
    return {name: [1e3 * s for s in seconds] for name, seconds in interleaved(calls, rounds).items()}


def tuned_rt_mlmc(app: Application, effort: Effort) -> tuple[str, Compiled]:
    """The candidate of least time x variance."""
    candidates = {f"rt_mlmc K={K}, batches of {size}": compiled(app, rt_mlmc(K, size)) for K, size in effort.candidates}
    if len(candidates) == 1:
        return next(iter(candidates.items()))
    ms = milliseconds(candidates, max(3, effort.rounds // 4))
    score = {name: median(ms[name]) * call.sample(effort.pilot, 1).variance for name, call in candidates.items()}
    best = min(score, key=score.__getitem__)
    return best, candidates[best]


def compare(name: str, app: Application, n0: int, effort: Effort) -> list[dict[str, Any]]:
    tuned_name, tuned = tuned_rt_mlmc(app, effort)
    others = {
        f"rt_mlmc K={effort.K}, single samples": bx.rt_mlmc(effort.K),
        f"saa n={n0}": bx.saa(n0),
        f"saa n={4 * n0}": bx.saa(4 * n0),
        f"antithetic n0={n0}, 6 levels": bx.antithetic_mlmc(n0),
        f"antithetic n0={n0}, no end": bx.antithetic_mlmc(n0, levels=None),
    }
    calls = {tuned_name: tuned} | {label: compiled(app, estimator) for label, estimator in others.items()}
    ms = milliseconds(calls, effort.rounds)
    reference = compiled(app, bx.antithetic_mlmc(4 * n0, levels=None)).sample(effort.calls, 2)
    norm = float(np.linalg.norm(reference.mean))
    return [
        {"problem": name, "estimator": label, **row(call.sample(effort.calls, 3), reference, norm, ms[label])}
        for label, call in calls.items()
    ]


def row(found: Sample, reference: Sample, norm: float, ms: list[float]) -> dict[str, Any]:
    n = len(found.grads)
    noise = found.variance / n + reference.variance / len(reference.grads)
    bias2 = max(0.0, float(np.sum((found.mean - reference.mean) ** 2)) - noise)
    cost = median(ms)
    return {
        "ms": cost,
        "+-": float(np.std(ms, ddof=1) / np.sqrt(len(ms))),
        "variance": found.variance,
        "+- ": found.variance_stderr,
        "ms x variance": cost * found.variance,
        "bias": bias2**0.5 / norm,
        "noise of bias": noise**0.5 / norm,
        "error in 1 s": bias2 + found.variance * cost / 1e3,
    }


def tiny_imagenet(norm: float) -> Application:
    from bilevelax.datasets.features import load_tinyimagenet
    from bilevelax.datasets.tasks import meta_learning_arrays

    arrays = meta_learning_arrays(load_tinyimagenet(), method="order")
    return meta_learning.make(arrays[0], arrays[1], norm=norm, batch=1)


def run(quick: bool = False) -> None:
    effort = QUICK if quick else FULL
    problems = {"continuous contexts": (leader_follower(), 8)}
    if not quick:
        problems["softmax d=64"] = meta(d=64, images=50), 16
        problems["softmax d=512"] = meta(), 32
        problems["newsvendor, 50 contexts"] = newsvendor(), 8
        if "BILEVELAX_DATA" in os.environ:
            problems |= {f"tinyImageNet, norm {s:g}": (tiny_imagenet(s), 32) for s in (5.0, 10.0)}
    rows = [r for name, (app, n0) in problems.items() for r in compare(name, app, n0, effort)]
    notes = ["Lower is better. tinyImageNet needs BILEVELAX_DATA." if not quick else "Quick: one problem, no tuning."]
    publish("antithetic", f"Sample-average estimators against RT-MLMC, {M} contexts a call", rows, notes)
