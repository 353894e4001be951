"""RT-MLMC and single-loop methods: on a classical bilevel problem, and on a contextual one.

Classical: the quadratic oracle with C = 0, whose follower answers all contexts alike, by
RT-MLMC, by ALSET (one lower step per upper step, then the Neumann estimate) and by SOBA, the
single-loop methods with lower steps of order t^-1/2. Contextual: y*(x, xi) = xi x,

    g = |y - xi x - eta|^2 / 2,   f = |y - 1|^2 / 2,   xi ~ Exp(1),   eta ~ N(0, I/4)

so grad F = E xi^2 x - E xi = 2 x - 1. One y shared by all contexts learns E xi x = x instead and
stops at x = 1, where grad F = 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

from bilevelax.applications.quadratic import problem_of
from bilevelax.estimate import Estimator
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.estimators.single_loop import single_loop
from bilevelax.experiments import _figures as figures
from bilevelax.experiments import _stationarity as stationarity
from bilevelax.experiments import _table1_problems as problems
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row, Table
from bilevelax.experiments._statistics import Interval, mean
from bilevelax.experiments._table1_data import L_G1
from bilevelax.experiments._trajectories import seed_keys, trajectories
from bilevelax.experiments.table1 import theorem_K
from bilevelax.inverse import neumann
from bilevelax.lower import epoch_sgd
from bilevelax.minibatch import minibatch
from bilevelax.problem import Problem

CONFIG = Config(
    title="RT-MLMC against single-loop methods, without and with contexts",
    place="Remark after Theorem 1 (SBO: the bounds of ALSET), and Section 1 (single-loop methods and contexts)",
    duration="about 3 minutes",
    scales={
        "smoke": {"seeds": 2, "eps": [0.75, 0.65], "c": 0.4, "horizon": 6.0, "T": 200, "K": 3, "contexts": 4},
        "quick": {"seeds": 8, "eps": [0.5, 0.354, 0.25], "c": 0.4, "horizon": 6.0, "T": 2000, "K": 6, "contexts": 8},
        "full": {
            "seeds": 8,
            "eps": [0.5, 0.354, 0.25, 0.177],
            "c": 0.4,
            "horizon": 6.0,
            "T": 4000,
            "K": 8,
            "contexts": 8,
        },
    },
)
METHODS = ("RT-MLMC", "ALSET", "SOBA")
N = 10
D = 2  # of the contextual problem
CHUNKS = 100


def classical() -> problems.Known:
    """The quadratic whose follower ignores the context."""
    known, found = problems.known_quadratic(), problems.matrices()
    return known._replace(problem=problem_of(dataclasses.replace(found, C=0 * found.C)))


def contextual() -> problems.Known:
    """y* = xi x; see above."""
    problem = Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - xi * x - eta) ** 2) / 2,
        sample_context=lambda key, data: random.exponential(key, dtype=float),
        sample_conditional=lambda key, xi, data: random.normal(key, (D,), float) / 2,
        init_y=lambda x, xi: jnp.zeros_like(x),
        mu_g=1.0,
        L_g1=1.0,
    )
    return problems.Known(problem, jnp.zeros(D, float), stationarity.square_of(lambda x: 2 * x - 1))


def estimators() -> dict[str, Callable[[float], Estimator]]:
    """The methods as functions of eps; the single-loop ones are the same for all eps."""
    series, steps = neumann(N), epoch_sgd(1.0, cap=float("inf"))
    decay = lambda t: (1 + t).astype(float) ** -0.5 / (2 * L_G1)
    rt = functools.cache(lambda K: rt_mlmc(K, lower=steps, inverse=series))  # equal K share a program
    alset, soba = single_loop("ttsa", beta=decay, inverse=series), single_loop("soba", beta=decay)
    return {
        "RT-MLMC": lambda eps: rt(theorem_K(eps)),
        "ALSET": lambda eps: alset,
        "SOBA": lambda eps: soba,
    }


def contextual_rows(settings: dict[str, Any], seeds: int, method: str) -> list[Row]:
    """|grad F|^2 along runs with steps 2 / (t + 20)."""
    m = settings["contexts"]
    made = {
        "RT-MLMC": lambda: minibatch(rt_mlmc(settings["K"], lower=epoch_sgd(2.0)), m),
        "ALSET": lambda: single_loop("ttsa", batch=m),
        "SOBA": lambda: single_loop("soba", batch=m),
    }
    known, every = contextual(), settings["T"] // CHUNKS
    runs = trajectories(
        known.problem,
        made[method](),
        optax.sgd(lambda t: 2 / (t + 20)),
        known.x1,
        seed_keys(seeds),
        T=every * CHUNKS,
        every=every,
        watch=known.square,
        together=method != "RT-MLMC",
    )
    return [
        {
            "part": "contextual",
            "method": method,
            "seed": seed,
            "t": runs.t.tolist(),
            "square": [float(f"{v:.5g}") for v in runs.values["square"][seed]],
            "x": np.asarray(jax.device_get(runs.x))[seed].tolist(),
        }
        for seed in range(seeds)
    ]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    known, made = classical(), estimators()
    for method in METHODS:
        yield Cell(f"contextual, {method}", lambda method=method: contextual_rows(settings, seeds, method))  # type: ignore[misc]
    for eps in settings["eps"]:
        for method in METHODS:

            def work(eps: float = eps, method: str = method) -> list[Row]:
                return stationarity.measure(
                    known.problem,
                    made[method](eps),
                    known.x1,
                    known.square,
                    eps=eps,
                    c=settings["c"],
                    horizon=settings["horizon"],
                    seeds=seeds,
                    together=method != "RT-MLMC",
                    part="classical",
                    method=method,
                )

            yield Cell(f"classical, {method}, eps = {eps:g}", work)


def totals(records: Records) -> dict[str, stationarity.Totals]:
    return {method: stationarity.Totals(records.where(part="classical", method=method)) for method in METHODS}


def last_squares(records: Records, method: str) -> Interval:
    """|grad F|^2, mean over the last quarter of each run, over seeds."""
    curves = np.asarray(records.values("square", part="contextual", method=method))
    return mean(curves[:, 3 * CHUNKS // 4 :].mean(1))


def render(records: Records, out: Path) -> Rendered:
    found = totals(records)
    figure, axes = figures.panels(2)
    axes[0].set(
        xscale="log",
        yscale="log",
        xlabel="eps",
        ylabel="samples of eta",
        title="classical: one answer for all contexts",
    )
    axes[1].set(yscale="log", xlabel="outer steps t", ylabel=r"$|\nabla F(x_t)|^2$", title="contextual: y* = xi x")
    for method, total in found.items():
        figures.points(axes[0], total.eps, total.calls("eta"), method)
        curves = records.values("square", part="contextual", method=method)
        figures.band(axes[1], records.values("t", part="contextual", method=method)[0], curves, method)
    first, eps = found["RT-MLMC"].calls("eta")[0].value, found["RT-MLMC"].eps
    figures.reference(axes[0], eps, [first * (e / eps[0]) ** -4 for e in eps], "slope -4 (bound)")
    figures.ticks(axes[0], eps)
    axes[0].legend(frameon=False, loc="upper right")
    axes[1].legend(frameon=False, loc="lower left")
    path = figures.save(figure, out, "sbo")
    rows = [
        (method, f"{e:g}", str(T), str(eta), str(g))
        for method, total in found.items()
        for e, T, eta, g in zip(total.eps, total.steps(), total.calls("eta"), total.calls("grad_g"), strict=True)
    ]
    columns = ("method", "eps", "steps", "samples of eta", "gradients of g")
    caption = "Left: samples until E|grad F|^2 <= eps^2 on a classical bilevel problem. Right: on a contextual problem."
    return Rendered([(path, caption)], [Table("Classical: totals to eps-stationarity", columns, rows)])


def claims(records: Records) -> list[Claim]:
    found = totals(records)
    powers = {method: total.exponent("eta") for method, total in found.items()}
    ratio = found["RT-MLMC"].calls("eta")[-1].value / found["ALSET"].calls("eta")[-1].value
    stuck = {method: last_squares(records, method) for method in METHODS}
    close = abs(powers["RT-MLMC"].value - powers["ALSET"].value) <= 0.7
    return [
        Claim(
            "On a classical SBO the sample complexity of RT-MLMC matches that of ALSET, eps^-4",
            "-4 both, up to logarithms",
            "; ".join(f"{method} {power}" for method, power in powers.items()),
            records.settings["seeds"],
            Claim.judge(close and powers["RT-MLMC"].low >= -4.7, powers["RT-MLMC"].low >= -5.5),
            f"Samples of eta. The factor K is RT-MLMC's logarithm; at the smallest eps it takes {ratio:.2g} times the "
            "samples of ALSET, which keeps its y from step to step.",
        ),
        Claim(
            "Single-loop methods do not converge on contextual problems",
            "no number",
            "|grad F|^2 at the end: " + ", ".join(f"{method} {value}" for method, value in stuck.items()),
            records.settings["seeds"],
            Claim.judge(
                min(stuck[m].low for m in ("ALSET", "SOBA")) > 0.5 * D and stuck["RT-MLMC"].high < 0.1,
                min(stuck[m].low for m in ("ALSET", "SOBA")) > stuck["RT-MLMC"].high,
            ),
            f"One shared y learns y = x; they stop at x = 1 instead of 1/2, where |grad F|^2 = {D}.",
        ),
    ]
