"""Lemma 2 and Table 1 measured: bias, variance, cost, memory, and totals to eps-stationarity.

Totals: K = 2 log2(1/eps) plus a constant of the problem, as in Theorem 1. The variance of RT-MLMC grows like K, so its
constant steps are c eps^2 over K / FIRST; those of DL-SGD, whose variance does not grow, are c eps^2.
"""

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import bilevelax as bx
from bilevelax.base.statistics import Interval, bootstrap
from bilevelax.base.totals import Totals
from bilevelax_paper import epochs, figures, lemma2, stationarity
from bilevelax_paper import lemma2_claims as estimates
from bilevelax_paper.claims import Found, Rule, claims_of, where
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row
from bilevelax_paper.items import tasks
from bilevelax_paper.stationarity import BEYOND, COUNTS, Known, Problems, theorem_K

CONFIG = Config.read(__file__)
N_TOTALS, FIRST, TASKS = 12, 6, 2000  # terms of the series; K at which both methods take the same steps
LOWER = "exponent of eps, less the bound's, gradients of g"
BOUNDS = {"RT-MLMC": {"grad_g": -4, "grad_f": -4}, "DL-SGD": {"grad_g": -6, "grad_f": -4}}
PLAIN = "RT-MLMC, plain SGD"
MAKERS: dict[str, Any] = {**lemma2.MAKERS, PLAIN: partial(bx.rt_mlmc, lower=bx.sgd())}
META = {"meta-learning": lambda: Known(tasks.make(TASKS), jnp.zeros(tasks.D, float), tasks.square)}
PROBLEMS: Problems = {**stationarity.PROBLEMS, **META}


def total_cells(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    """Runs to eps-stationarity with the theorem's K, from the x_1 of the settings."""

    @functools.cache  # one object, hence one program, for each method and K
    def estimator(method: str, K: int) -> bx.Estimator:
        return MAKERS[method](K, inverse=bx.neumann(N_TOTALS))

    def work(known: Known, labels: Row, numbers: Row) -> list[Row]:
        made, together = estimator(labels["method"], labels["K"]), labels["method"] == "DL-SGD"
        return stationarity.measure(known, made, **numbers, together=together, part="totals", **labels)

    for name, of in settings["totals"].items():
        known = PROBLEMS[name]()._replace(x1=jnp.asarray(of["x1"], float))
        for method, eps in ((method, eps) for method, several in of["eps"].items() for eps in several):
            K = theorem_K(eps, of["plus"])
            over = 1.0 if method == "DL-SGD" else K / FIRST
            longer = over * (2 if method == PLAIN else 1)
            numbers = {"eps": eps, "c": of["c"] / over, "horizon": of["horizon"] * longer}
            numbers["seeds"] = seeds * settings["times"]
            labels = {"problem": name, "method": method, "K": K}
            depends = {**labels, **numbers, "N": N_TOTALS, "chunks": stationarity.CHUNKS, "x1": of["x1"]}
            yield Cell(f"{name}, {method}, eps = {eps:g}", partial(work, known, labels, numbers), depends)


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    yield from lemma2.size_cells(settings["dims"], settings["memory_K"])
    yield from lemma2.level_cells(settings, seeds)
    yield from epochs.cells(settings, seeds)
    yield from total_cells(settings, seeds)


def totals(records: Records, problem: str, method: str) -> Totals:
    return Totals(records.where(part="totals", problem=problem, method=method))


def needed(records: Records, problem: str, method: str) -> Found | None:
    """Exponents of eps, and what else there is to say of one problem and method."""
    of = records.settings["totals"].get(problem)
    if of is None or method not in of["eps"]:
        return None
    found = totals(records, problem, method)
    Ks = [theorem_K(eps, of["plus"]) for eps in found.eps] if method == "RT-MLMC" else None
    lines: Any = {BEYOND: found.beyond(-4, None, Ks)} if Ks else {LOWER: found.beyond(-6, "grad_g")}
    lines |= {f"exponent of eps, {COUNTS[kind]}": found.exponent(kind) for kind in ("grad_g", "grad_f")}
    words: Any = {"first": found.eps[0], "last": found.eps[-1], "c": of["c"], "plus": of["plus"]}
    words |= {"tolerance": CONFIG.texts["claims"]["needed"]["holds"][0], "over": f" times {FIRST}/K" if Ks else True}
    words |= {"g": BOUNDS[method]["grad_g"], "f": BOUNDS[method]["grad_f"], "missed": found.missed}
    words |= {"slopes": ", ".join(f"{p:.2f}" for p in found.neighbours()), "steps": found.beyond(-4, None, Ks).value}
    return Found(lines, words=words, seeds=found.seeds)


def plain(records: Records) -> Found | None:
    """Steps with plain SGD for the lower level over those with EpochSGD, at the smallest eps of the former."""
    named = [name for name, of in records.settings["totals"].items() if PLAIN in of["eps"]]
    pairs = {name: [totals(records, name, method) for method in (PLAIN, "RT-MLMC")] for name in named}
    if not pairs:
        return None

    def ratio(plain: Totals, epoch: Totals) -> Interval:
        i, j = len(plain.sizes) - 1, epoch.sizes.index(plain.sizes[-1])
        over = lambda seeds: plain.needed_by(seeds, i) / epoch.needed_by(seeds, j)
        return bootstrap(over, np.arange(plain.seeds))

    (first, _), *_ = pairs.values()
    lines = {"steps with plain SGD over those with EpochSGD": {name: ratio(*pair) for name, pair in pairs.items()}}
    beside: Any = {"exponent of eps, steps with plain SGD": {n: pair[0].exponent() for n, pair in pairs.items()}}
    return Found(lines, beside, {"eps": first.sizes[-1]}, first.seeds)


# All eps reached, and the number of steps, too, near its bound
NEAR = Rule(lambda found: not found.words["missed"] and found.words["steps"] >= found.words["tolerance"])
ALIKE = where(lambda ratio: ratio.low >= 0.5 and ratio.high <= 2)
CLAIMS = claims_of(CONFIG, {**estimates.RULES, **epochs.RULES, needed: NEAR, plain: ALIKE})


def draw_totals(records: Records, axes: Any) -> None:
    """Gradients of g against eps, a panel for each problem."""
    for panel, (problem, of) in zip(axes, records.settings["totals"].items(), strict=False):
        title = f"{problem}: total to eps-stationarity"
        panel.set(**figures.LOG_LOG, xlabel="eps", ylabel=COUNTS["grad_g"], title=title)
        for method in of["eps"]:
            found = totals(records, problem, method)
            calls, look = found.calls("grad_g"), {"linestyle": "dotted"} if method == PLAIN else {}
            figures.points(panel, found.eps, calls, method, **look)
            for i in found.there[: method in BOUNDS]:
                power = BOUNDS[method]["grad_g"]
                line = [calls[i].value * (eps / found.eps[i]) ** power for eps in found.eps]
                figures.reference(panel, found.eps, line, f"slope {power}")
        figures.ticks(panel, max(of["eps"].values(), key=len))


def render(records: Records) -> Drawn:
    n = 6 + len(records.settings["totals"])
    figure, axes = figures.panels(n + n % 2, rows=-(-n // 2))
    estimates.draw(records, axes)
    draw_totals(records, axes[6:])
    for panel in axes[:n]:
        figures.legend(panel, loc="best")
    return Drawn(figure, [estimates.table(records)])
