"""Time x variance and bias of RT-MLMC, saa and antithetic_mlmc: softmax, newsvendor, continuous contexts.

Every estimator averages about 64 contexts a call: where there are 20 or 50 in all, 60 or 50 of them,
each equally often (`minibatch(contexts="spread")`), but in the paper's form of RT-MLMC. The gradient
that they are held against is exact where all outcomes are known, else the mean of untruncated, hence
unbiased, antithetic estimates. ``bias`` is relative to its norm, with the noise of both means taken out
(so it may come out as 0); ``error in 1 s`` is bias^2 + variance at the number of calls that one second
allows, which is what an outer step pays for, and ``100 s`` what a certificate or a last, long step would;
a bias within twice its noise counts as none there, whoever's it is. ``/ best antithetic`` divides by the
best of the antithetic rows, with the standard error of the ratio from those of the two times and
variances. ``decay`` is how E|Delta_l|^2 falls.

``python benchmarks/antithetic.py NAME ...`` measures some of the problems again, each into its own record.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import installed, interleaved, median, publish, slug
from jax import random
from jax.flatten_util import ravel_pytree
from problems import leader_follower, meta, newsvendor
from rivals import jaxopt_average

import bilevelax as bx
from bilevelax.applications import Application, meta_learning
from bilevelax.diagnostics.reference import reference

DEPTH = 4  # levels whose differences are measured
LEAST = 20  # calls of which a variance is estimated


class Setup(NamedTuple):
    """A problem, and what suits it."""

    app: Application
    n0: int
    m: int = 64  # contexts a call: a multiple of their number where that is small

    @property
    def contexts(self) -> str:
        return "independent" if self.app.problem.n_contexts is None else "spread"


class Setting(NamedTuple):
    """One way to run RT-MLMC."""

    K: int
    batch: int = 1  # samples averaged in every draw
    lower: int | None = None  # in those of EpochSGD, by default as many
    summed: bool = False  # the Neumann series summed instead of one random product
    N: int | None = None  # terms of the series, by default from mu_g and L_g1
    beta: float = 1.0  # beta0 in units of 1 / mu_g
    mode: str = "stratified"
    contexts: str = "independent"

    def estimator(self, problem: bx.Problem) -> bx.Estimator:
        inverse = bx.summed_neumann(self.N) if self.summed else bx.neumann(self.N)
        lower = bx.epoch_sgd(self.beta / problem.mu_g, batch=self.lower or self.batch)
        return bx.rt_mlmc(self.K, lower, inverse, batch=self.batch)

    def __str__(self) -> str:
        given = [
            f"{name}={value}" for name, value in self._asdict().items() if value != Setting._field_defaults.get(name)
        ]
        return f"rt_mlmc {', '.join(given)}"


# tuned one argument after another, each from the best so far: (argument, values to try)
SEARCH = (
    ("batch", (16, 64)),
    ("summed", (True,)),
    ("K", (5,)),
    ("N", (20,)),
    ("lower", (4,)),
    ("beta", (2.0,)),
    ("mode", ("shared",)),
)
# and before all of these, where contexts are numbered
SPREAD = ("contexts", ("spread",))


class Effort(NamedTuple):
    single: Setting  # RT-MLMC with single samples, as in the paper
    rounds: int  # timed calls
    calls: int  # of which bias and variance are estimated
    pilot: int  # calls of each candidate when RT-MLMC is tuned
    seconds: float  # at most, for the calls of one estimator; a third of it for those of a candidate
    search: tuple[tuple[str, tuple[Any, ...]], ...]


QUICK = Effort(Setting(3), 3, 20, 10, 2.0, (("batch", (16,)),))
FULL = Effort(Setting(8), 15, 300, 40, 10.0, SEARCH)


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


class Truth(NamedTuple):
    """grad F(x1) and the variance of this value, zero where it is exact."""

    grad: np.ndarray
    noise: float


def truth(setup: Setup, calls: int) -> Truth:
    """On all outcomes of all contexts where they are known, else the mean of estimates without bias."""
    problem = setup.app.problem
    if problem.n_contexts is not None and problem.support is not None:
        return Truth(reference(random.key(0), problem, setup.app.x1, problem.n_contexts, 0).grad, 0.0)
    found = compiled(setup, bx.antithetic_mlmc(4 * setup.n0, None, 0.05, factor=8)).sample(calls, 2, np.inf)
    return Truth(found.mean, found.variance / calls)


class Compiled(NamedTuple):
    """An estimator compiled once, for timing and sampling alike."""

    step: Any
    app: Application

    def __call__(self, i: int) -> Any:
        return self.step(random.key(i), self.app.problem, self.app.x1)

    def sample(self, n: int, seed: int, seconds: float) -> Sample:
        """n gradients, or as many as there is time for, but LEAST."""
        rows: list[np.ndarray] = []
        started = time.perf_counter()
        while len(rows) < n and (len(rows) < LEAST or time.perf_counter() - started < seconds):
            rows.append(np.asarray(self(seed * 1_000_000 + len(rows)), np.float64))
        return Sample(np.stack(rows))


def compiled(setup: Setup, estimator: bx.Estimator, mode: str = "stratified", contexts: str | None = None) -> Compiled:
    return as_it_is(setup.app, bx.minibatch(estimator, setup.m, mode, contexts or setup.contexts))


def as_it_is(app: Application, batch: bx.Estimator) -> Compiled:
    return Compiled(jax.jit(lambda key, problem, x: ravel_pytree(batch.estimate(key, problem, x, ())[0].grad)[0]), app)


def milliseconds(calls: dict[str, Compiled], rounds: int) -> dict[str, list[float]]:
    """Of each call, in turns."""
    return {name: [1e3 * s for s in seconds] for name, seconds in interleaved(calls, rounds).items()}


def tuned_rt_mlmc(setup: Setup, exact: Truth, effort: Effort) -> tuple[str, Compiled]:
    """The setting of least error in one second, found by one argument after another."""
    known: dict[Setting, tuple[float, Compiled]] = {}

    def score(setting: Setting) -> float:
        if setting not in known:
            call = compiled(setup, setting.estimator(setup.app.problem), setting.mode, setting.contexts)
            found = row(call.sample(effort.pilot, 1, effort.seconds / 3), exact, milliseconds({"": call}, 5)[""])
            known[setting] = found["error in 1 s"], call
        return known[setting][0]

    best = effort.single
    for name, values in (SPREAD, *effort.search) if setup.contexts == "spread" else effort.search:
        best = min([best, *(best._replace(**{name: value}) for value in values)], key=score)
    return str(best), known[best][1]


def fitted(app: Application, n0: int, levels: int | None, factor: int) -> tuple[str, bx.Estimator]:
    """With the correction rate of a pilot."""
    rate = bx.correction_rate(app.problem, app.x1, key=random.key(5), n0=n0, levels=levels, factor=factor)
    end = "" if levels else ", no end"
    name = f"antithetic n0={n0}, groups of {factor}{end}, rate {rate:.2g}"
    return name, bx.antithetic_mlmc(n0, levels, rate, factor=factor)


def compare(name: str, setup: Setup, effort: Effort) -> list[dict[str, Any]]:
    app, n0 = setup.app, setup.n0
    exact = truth(setup, 8 * effort.calls)
    tuned_name, tuned = tuned_rt_mlmc(setup, exact, effort)
    single = compiled(setup, effort.single.estimator(app.problem), contexts=effort.single.contexts)
    others = {
        f"saa n={n0}": bx.saa(n0),
        f"saa n={4 * n0}": bx.saa(4 * n0),
        "antithetic, as it comes": bx.antithetic_mlmc(),
        **dict(fitted(app, *each) for each in ((n0, 6, 2), (n0, 2, 8), (4 * n0, 2, 8), (n0, None, 8))),
    }
    calls = {f"{tuned_name}, tuned": tuned, f"{effort.single}, single samples": single}
    calls |= {label: compiled(setup, estimator) for label, estimator in others.items()}
    if installed("jaxopt"):
        calls[f"vmap of jaxopt LBFGS, n={n0}"] = as_it_is(app, jaxopt_average(n0, setup.m))
    ms = milliseconds(calls, effort.rounds)
    rows = [
        {"problem": name, "estimator": label, **row(call.sample(effort.calls, 3, effort.seconds), exact, ms[label])}
        for label, call in calls.items()
    ]
    for column in ("error in 1 s", "error in 100 s"):
        ours = min((r for r in rows if r["estimator"].startswith("antithetic")), key=lambda r: r[column])
        for r in rows:
            ratio = r[column] / ours[column]
            r |= {f"{column} / best antithetic": ratio, f"+- of it, {column[9:]}": ratio * relative_error(r, ours)}
    return rows


def relative_error(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Of the ratio of two products of time and variance."""
    return float(np.linalg.norm([r[part] / r[of] for r in (a, b) for part, of in (("+-", "ms"), ("+- ", "variance"))]))


def decay(app: Application, n0: int, contexts: int) -> list[float]:
    """E|Delta_l|^2 for l = 1, 2, ...: it should fall by 4 a level."""
    levels = bx.antithetic_mlmc(n0, DEPTH, factor=2).levels
    assert levels is not None
    keys = random.split(random.key(7), contexts)
    at = jax.jit(lambda level: levels.at_levels(jnp.full(contexts, level, jnp.int32), keys, app.problem, app.x1).grad)
    rows = lambda grads: np.asarray(jax.vmap(lambda g: ravel_pytree(g)[0])(grads), np.float64)
    base = rows(at(0))
    squares = lambda level: np.sum((float(levels.probabilities[level]) * (rows(at(level)) - base)) ** 2, axis=1)
    return [float(squares(level).mean()) for level in range(1, DEPTH + 1)]


def row(found: Sample, exact: Truth, ms: list[float]) -> dict[str, Any]:
    n = len(found.grads)
    noise = found.variance / n + exact.noise
    bias2 = max(0.0, float(np.sum((found.mean - exact.grad) ** 2)) - noise)
    seen = bias2 if bias2 > 4 * noise else 0.0
    norm, cost = float(np.linalg.norm(exact.grad)), median(ms)
    return {
        "ms": cost,
        "+-": float(np.std(ms, ddof=1) / np.sqrt(len(ms))),
        "variance": found.variance,
        "+- ": found.variance_stderr,
        "ms x variance": cost * found.variance,
        "bias": bias2**0.5 / norm,
        "noise of bias": noise**0.5 / norm,
        "error in 1 s": seen + found.variance * cost / 1e3,
        "error in 100 s": seen + found.variance * cost / 1e5,
        "calls": n,
    }


def tiny_imagenet(norm: float) -> Application:
    from bilevelax.datasets.features import load_tinyimagenet
    from bilevelax.datasets.tasks import meta_learning_arrays

    arrays = meta_learning_arrays(load_tinyimagenet(), method="order")
    return meta_learning.make(arrays[0], arrays[1], norm=norm, batch=1)


def problems(quick: bool) -> dict[str, Callable[[], Setup]]:
    found: dict[str, Callable[[], Setup]] = {"continuous contexts": lambda: Setup(leader_follower(), 8)}
    if not quick:
        found["softmax d=64"] = lambda: Setup(meta(d=64, images=50), 16, 60)
        found["softmax d=512"] = lambda: Setup(meta(), 32, 60)
        found["newsvendor, 50 contexts"] = lambda: Setup(newsvendor(), 8, 50)
        if "BILEVELAX_DATA" in os.environ:
            found["tinyImageNet, norm 5"] = lambda: Setup(tiny_imagenet(5.0), 32, 60)
            found["tinyImageNet, norm 10"] = lambda: Setup(tiny_imagenet(10.0), 32, 60)
    return found


def measure(name: str, setup: Setup, quick: bool) -> None:
    falls = decay(setup.app, setup.n0, 16 if quick else 64)
    slope = np.polyfit(np.arange(DEPTH), np.log2(falls), 1)[0] if min(falls) > 0 else -np.inf
    notes = [
        "Lower is better." if not quick else "Quick: few calls, no tuning.",
        f"E|Delta_l|^2, l = 1 to {DEPTH}: {', '.join(f'{fall:.3g}' for fall in falls)}; "
        f"slope {slope:.2f} a level (theory -2).",
    ]
    rows = compare(name, setup, QUICK if quick else FULL)
    publish(f"antithetic_{slug(name)}", f"{name}: estimators of a gradient, {setup.m} contexts a call", rows, notes)


def run(quick: bool = False, names: Sequence[str] = ()) -> None:
    found = problems(quick)
    for name in names or found:  # published as they come: one takes some minutes
        measure(name, found[name](), quick)


if __name__ == "__main__":
    run(names=sys.argv[1:])
