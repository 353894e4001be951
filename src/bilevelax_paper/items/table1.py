"""Lemma 2 and Table 1 measured: bias, variance, cost, memory, and totals to eps-stationarity.

Totals: constant steps alpha = c eps^2 and K = 2 log2(1/eps) plus a constant of the problem, as in Theorem 1, and the
best K of those that were tried. The constant is 2 on the nonconvex problem: with 1 the bias at eps = 1/2 is above eps.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import bilevelax as bx
from bilevelax.base.statistics import Interval, bootstrap
from bilevelax_paper import epochs, figures, lemma2, stationarity
from bilevelax_paper import lemma2_claims as estimates
from bilevelax_paper.claims import Found, Rule, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row
from bilevelax_paper.stationarity import BEYOND, COUNTS, PROBLEMS, Totals, theorem_K

CONFIG = Config.read(__file__)
N_TOTALS = 10
LOWER = "exponent of eps, less the bound's, gradients of g"
BOUNDS = {"RT-MLMC": {"grad_g": -4, "grad_f": -4}, "DL-SGD": {"grad_g": -6, "grad_f": -4}}


def total_cells(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    """Runs to eps-stationarity for K of the theorem and fewer."""

    @functools.cache  # one object, hence one program, for each method and K
    def estimator(method: str, K: int) -> bx.Estimator:
        return lemma2.MAKERS[method](K, lower=bx.epoch_sgd(1.0, cap=math.inf), inverse=bx.neumann(N_TOTALS))

    def work(known: stationarity.Known, labels: Row, numbers: Row) -> list[Row]:
        made, together = estimator(labels["method"], labels["K"]), labels["method"] == "DL-SGD"
        return stationarity.measure(known, made, **numbers, together=together, part="totals", **labels)

    for name in settings["problems"]:
        known, further = PROBLEMS[name](), settings["further"][name]  # these eps with RT-MLMC and the theorem's K only
        for eps in (*settings["eps"], *further):
            most = theorem_K(eps, settings["plus"][name])
            Ks = sorted({max(1, most - less) for less in settings["fewer"] if eps not in further or not less})[::-1]
            for K, method in itertools.product(Ks, ["RT-MLMC"] if eps in further else lemma2.MAKERS):
                numbers = {"eps": eps, "c": settings["c"][name], "horizon": settings["horizon"][name]}
                numbers |= {"seeds": seeds * settings["times"] if method == "RT-MLMC" else seeds}
                labels = {"problem": name, "method": method, "K": K}
                of = {**labels, **numbers, "N": N_TOTALS, "chunks": stationarity.CHUNKS}
                yield Cell(f"{name}, {method}, eps = {eps:g}, K = {K}", partial(work, known, labels, numbers), of)


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    yield from lemma2.size_cells(settings["dims"], settings["memory_K"])
    yield from lemma2.level_cells(settings, seeds)
    yield from epochs.cells(settings, seeds)
    yield from total_cells(settings, seeds)


def totals(records: Records, problem: str, method: str, *, fewer: int | None = 0) -> Totals:
    """With the theorem's K or ``fewer``, or (None) the K that surely (upper end) needs the fewest gradients of g."""
    rows: list[Row] = []
    for eps in records.distinct("eps", part="totals", problem=problem, method=method):
        where = {"part": "totals", "problem": problem, "method": method, "eps": eps}
        of_K = {K: records.where(**where, K=K) for K in sorted(records.distinct("K", **where))}
        most = max(1, theorem_K(eps, records.settings["plus"][problem]) - (fewer or 0))
        surely = lambda K, of_K=of_K: Totals(of_K[K]).calls("grad_g")[0].high
        rows += of_K.get(min(of_K, key=surely) if fewer is None else most, [])  # further eps have the theorem's K only
    return Totals(rows)


def fit_in_K(records: Records, problem: str, method: str) -> dict[str, Interval]:
    """p and b of T = a K^b eps^p, by least squares over all pairs of K and eps that were reached."""
    plus, fewer = records.settings["plus"][problem], records.settings["fewer"]
    every = [(less, totals(records, problem, method, fewer=less)) for less in fewer]
    points = [(max(1, theorem_K(found.eps[i], plus) - less), found, i) for less, found in every for i in found.there]
    design = np.array([[1.0, math.log(K), math.log(found.eps[i])] for K, found, i in points])
    if np.linalg.matrix_rank(design) < 3:
        return {}

    def fitted(which: int, seeds: np.ndarray) -> float:
        steps = np.log([found.needed_by(seeds, i) for _, found, i in points])
        there = np.isfinite(steps)
        return float(np.linalg.lstsq(design[there], steps[there], rcond=None)[0][which])

    names = {f"p of T = a K^b eps^p, {len(points)} pairs of K and eps": 2, "b of it": 1}
    return {name: bootstrap(partial(fitted, which), np.arange(every[0][1].seeds)) for name, which in names.items()}


def needed(records: Records, problem: str, method: str) -> Found | None:
    """Exponents of eps, and what else there is to say of one problem and method."""
    s = records.settings
    if problem not in s["problems"]:
        return None
    theorem, best = (totals(records, problem, method, fewer=fewer) for fewer in (0, None))
    powers = {COUNTS[kind]: theorem.exponent(kind) for kind in ("grad_g", "grad_f")}
    powers["gradients of g, best K"] = best.exponent("grad_g")
    Ks = [theorem_K(eps, s["plus"][problem]) for eps in theorem.eps] if method == "RT-MLMC" else None
    first = {BEYOND: theorem.beyond(-4, None, Ks)} if Ks else {LOWER: theorem.beyond(-6, "grad_g")}
    lines: Any = first | {f"exponent of eps, {name}": power for name, power in powers.items()}
    words: Any = {"first": theorem.eps[0], "last": theorem.eps[-1]} | {name: s[name][problem] for name in ("c", "plus")}
    words |= {"tolerance": CONFIG.texts["claims"]["needed"]["holds"][0]}
    words |= {"g": BOUNDS[method]["grad_g"], "f": BOUNDS[method]["grad_f"]}
    slopes = ", ".join(f"{p:.2f}" for p in theorem.neighbours())
    less = missed_words(totals(records, problem, method, fewer=1)) if 1 in s["fewer"] else ""
    words |= {"slopes": slopes, "missed": missed_words(theorem), "less": less}
    words |= {"steps": theorem.beyond(-4, None, Ks).value}
    beside = fit_in_K(records, problem, method) if Ks else {}
    return Found(lines, beside, {**words, "fitted": bool(beside)}, theorem.seeds)


def missed_words(found: Totals) -> str:
    """The eps that were missed, and whether more steps would have helped."""

    def how(i: int) -> str:
        curve = found.curves[:, i].mean(0) / found.eps[i] ** 2
        least, last = float(curve.min()), float(curve[-1])
        rises = f"falls to {least:.2f} eps^2 and rises to {last:.2f}: a bias"
        return rises if last > 1.05 * least else f"ends at {last:.2f} eps^2"

    missed = [i for i, eps in enumerate(found.eps) if eps in found.missed]
    return ", ".join(f"eps = {found.eps[i]:g} (E|grad F|^2 {how(i)})" for i in missed)


# All eps reached, and the number of steps, too, near its bound
NEAR = Rule(lambda found: not found.words["missed"] and found.words["steps"] >= found.words["tolerance"])
CLAIMS = claims_of(CONFIG, {**estimates.RULES, **epochs.RULES, needed: NEAR})


def draw_totals(records: Records, axes: Any) -> None:
    """Gradients of g against eps, a panel for each problem."""
    for panel, problem in zip(axes, records.settings["problems"], strict=False):
        title = f"{problem}: total to eps-stationarity"
        panel.set(**figures.LOG_LOG, xlabel="eps", ylabel=COUNTS["grad_g"], title=title)
        for method, bounds in BOUNDS.items():
            found, best = (totals(records, problem, method, fewer=fewer) for fewer in (0, None))
            calls, power, look = found.calls("grad_g"), bounds["grad_g"], {"linestyle": "dotted", "marker": "x"}
            figures.points(panel, found.eps, calls, method)
            figures.points(panel, best.eps, best.calls("grad_g"), method, f"{method}, best K", **look)
            for i in found.there[:1]:
                line = [calls[i].value * (eps / found.eps[i]) ** power for eps in found.eps]
                figures.reference(panel, found.eps, line, f"slope {power}")
        figures.ticks(panel, found.eps)


def render(records: Records) -> Drawn:
    figure, axes = figures.panels(8, rows=4)
    estimates.draw(records, axes)
    draw_totals(records, axes[6:])
    for panel in axes[: 6 + len(records.settings["problems"])]:
        figures.legend(panel, loc="best")
    return Drawn(figure, [estimates.table(records)])
