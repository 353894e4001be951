"""Lemma 2 and Table 1 measured: bias, variance, cost, memory, and totals to eps-stationarity.

One gradient: the quadratic oracle, whose bias is known in closed form. With eigenvalues of E A
from 1 the step size beta0 = 1 is 1/mu; beta0 = 1/4 is the paper's 1/(4 mu). Totals: constant steps
alpha = c eps^2 and K = 2 log2(1/eps) plus a constant of the problem, as in Theorem 1; and the best K of
those that were tried. The constant is 2 on the nonconvex problem: with 1 the bias left at eps = 1/2 is
larger than eps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from bilevelax.estimate import Estimator
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.experiments import _lemma2 as lemma2
from bilevelax.experiments import _stationarity as stationarity
from bilevelax.experiments import _table1_claims
from bilevelax.experiments import _table1_epochs as epochs
from bilevelax.experiments import _table1_problems as problems
from bilevelax.experiments import _table1_show as show
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row
from bilevelax.inverse import neumann
from bilevelax.lower import epoch_sgd

CONFIG = Config(
    title="Bias, variance, cost, memory and complexity of DL-SGD and RT-MLMC",
    place="Lemma 2, Theorem 1 and Table 1",
    duration="about 6 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "levels": 3,
            "n": 8,
            "N": 4,
            "Ns": [4, 2],
            "dims": [16, 32],
            "memory_K": [2],
            "eps": [0.75, 0.65],
            "plus": {"quadratic": 1, "nonconvex": 2},
            "fewer": [0],
            "c": {"quadratic": 0.4, "nonconvex": 0.1},
            "horizon": {"quadratic": 8.0, "nonconvex": 24.0},
            "problems": ["quadratic"],
        },
        "quick": {
            "seeds": 8,
            "levels": 8,
            "n": 256,
            "N": 40,
            "Ns": [4, 16, 64],
            "dims": [64, 512, 4096],
            "memory_K": [4, 12],
            "eps": [0.5, 0.354, 0.25],
            "plus": {"quadratic": 1, "nonconvex": 2},
            "fewer": [0],
            "c": {"quadratic": 0.4, "nonconvex": 0.1},
            "horizon": {"quadratic": 8.0, "nonconvex": 24.0},
            "problems": ["quadratic", "nonconvex"],
        },
        "full": {
            "seeds": 8,
            "levels": 10,
            "n": 256,
            "N": 40,
            "Ns": [4, 16, 64],
            "dims": [64, 1024, 16384],
            "memory_K": [4, 12],
            "eps": [0.5, 0.354, 0.25, 0.177],
            "plus": {"quadratic": 1, "nonconvex": 2},
            "fewer": [0, 1, 2],
            "c": {"quadratic": 0.4, "nonconvex": 0.1},
            "horizon": {"quadratic": 8.0, "nonconvex": 24.0},
            "problems": ["quadratic", "nonconvex"],
        },
    },
)
STEP_SIZES = {"1/mu": 1.0, "1/(4 mu)": 0.25}  # mu = 1
N_TOTALS = 10
MAKERS: dict[str, Any] = {"RT-MLMC": rt_mlmc, "DL-SGD": dl_sgd}


def theorem_K(eps: float, plus: int = 1) -> int:
    """K = 2 log2(1/eps) plus a constant: twice the accuracy in eps, two more epochs."""
    return max(1, round(2 * math.log2(1 / eps)) + plus)


def K_of(settings: Mapping[str, Any], problem: str, eps: float) -> int:
    """The theorem's K with the constant of this problem."""
    return theorem_K(eps, settings["plus"][problem])


def level_cells(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    """Moments of every level, for both step sizes, and against N."""
    known, x = problems.known_quadratic(), jnp.asarray(problems.start(problems.matrices()), float)
    levels = list(range(1, settings["levels"] + 1))

    lower_of, inverse_of = functools.cache(partial(epoch_sgd, cap=math.inf)), functools.cache(neumann)

    def rows(part: str, beta0: float, N: int, levels: list[int]) -> list[Row]:
        lower, inverse = lower_of(beta0), inverse_of(N)  # the same objects share a program
        found = lemma2.level_rows(known.problem, x, levels, lower, inverse, settings["n"], seeds)
        return [{"part": part, "beta0": beta0, "N": N, **row} for row in found]

    def cell(name: str, *of: Any) -> Cell:
        named = dict(zip(("part", "beta0", "N", "levels"), of, strict=True))
        return Cell(f"levels, {name}", partial(rows, *of), {**named, "n": settings["n"]})

    for name, beta0 in STEP_SIZES.items():
        yield cell(f"beta0 = {name}", "levels", beta0, settings["N"], levels)
    for N in settings["Ns"]:
        yield cell(f"N = {N}", "N", 1.0, N, levels[:6])


def memory_rows(dims: list[int], Ks: list[int]) -> list[Row]:
    """Bytes against d, for few and many levels."""
    return [
        {"part": "memory", "method": method, "K": K, "d": d, "bytes": lemma2.memory(lambda: make(K), d)}  # noqa: B023
        for method, make in MAKERS.items()
        for K in Ks
        for d in dims
    ]


def total_cells(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    """Runs to eps-stationarity for K of the theorem and fewer."""
    made: dict[tuple[str, int], Estimator] = {}  # one object, hence one program, for each method and K

    def estimator(method: str, K: int) -> Estimator:
        parts = {"lower": epoch_sgd(1.0, cap=math.inf), "inverse": neumann(N_TOTALS)}
        return made.setdefault((method, K), MAKERS[method](K, **parts))

    def work(known: problems.Known, labels: dict[str, Any], numbers: dict[str, float]) -> list[Row]:
        method, K = labels["method"], labels["K"]
        together = method == "DL-SGD"
        args = known.problem, estimator(method, K), known.x1, known.square
        return stationarity.measure(*args, **numbers, seeds=seeds, together=together, part="totals", **labels)

    for name in settings["problems"]:
        known = problems.PROBLEMS[name]()
        for eps in settings["eps"]:
            numbers = {"eps": eps, "c": settings["c"][name], "horizon": settings["horizon"][name]}
            most = K_of(settings, name, eps)
            for K in sorted({max(1, most - less) for less in settings["fewer"]}, reverse=True):
                for method in MAKERS:
                    labels = {"problem": name, "method": method, "K": K}
                    of = {**labels, **numbers, "N": N_TOTALS, "chunks": stationarity.CHUNKS}
                    yield Cell(f"{name}, {method}, eps = {eps:g}, K = {K}", partial(work, known, labels, numbers), of)


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    sizes = {"dims": settings["dims"], "memory_K": settings["memory_K"]}
    yield Cell("memory", lambda: memory_rows(settings["dims"], settings["memory_K"]), {"part": "memory", **sizes})
    yield Cell(
        "arithmetic", lambda: lemma2.arithmetic_rows(settings["dims"]), {"part": "arithmetic", "dims": settings["dims"]}
    )
    yield from level_cells(settings, seeds)
    yield from epochs.cells(settings, seeds)
    yield from total_cells(settings, seeds)


def render(records: Records, out: Path) -> Rendered:
    return show.render(records, out, partial(K_of, records.settings))


def claims(records: Records) -> list[Claim]:
    return _table1_claims.claims(records, partial(K_of, records.settings))
