"""Time of one gradient, DL-SGD against RT-MLMC, by K: what tables 2 and 3 share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.applications import Application
from bilevelax.base.compiling import program
from bilevelax.base.statistics import Interval, bootstrap, mean
from bilevelax.base.text_table import three_digits
from bilevelax.base.timing import timed
from bilevelax.core.inverse import InverseHessian
from bilevelax.core.problem import Key, X
from bilevelax.estimators.rt_mlmc import level_probabilities
from bilevelax_paper import figures
from bilevelax_paper.claims import Found, Rule
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row, Table

METHODS = ("DL-SGD", "RT-MLMC")
POSSIBLE = Rule(lambda found: not found.words["apart"])  # of `spread_on`
TURN = 20  # calls of one method before it is the other's turn: a long call of the other leaves caches cold


Paper = Mapping[int, Sequence[Sequence[float]]]  # K -> DL-SGD, RT-MLMC: seconds, mean and what it calls variance


def printed_in(config: Config) -> Paper:
    return {int(K): pair for K, pair in config.texts["printed"].items()}


@program(static_argnames="estimator")
def gradient(key: Key, problem: bx.Problem, x: X, estimator: bx.Estimator) -> tuple[X, bx.Cost]:
    est, _ = estimator.estimate(key, problem, x, ())
    return est.grad, est.cost


def timed_rows(app: Application, K: int, inverse: InverseHessian | None, calls: int, source: str) -> list[Row]:
    """Seconds of every call, the two methods taking turns; compiled before. Contexts and levels are drawn anew."""
    estimators = {"DL-SGD": bx.dl_sgd(K, inverse=inverse), "RT-MLMC": bx.rt_mlmc(K, inverse=inverse)}
    same = {"K": K, "calls": calls, "data": source}
    rows: dict[str, Any] = {name: {**same, "method": name, "grad_g": [], "seconds": []} for name in METHODS}

    once = lambda name, i: gradient(random.key(i), app.problem, app.x1, estimators[name])
    for name in METHODS:
        jax.block_until_ready(once(name, calls))
    for block in range(0, calls, TURN):
        for name, row in rows.items():
            for i in range(block, min(block + TURN, calls)):
                seconds, (_, cost) = timed(partial(once, name, i))
                row["seconds"].append(seconds)
                row["grad_g"].append(int(cost.grad_g))
    return list(rows.values())


def cells(settings: Row, load: Callable[[], tuple[Application, InverseHessian | None, str]], of: Row) -> Iterator[Cell]:
    """One for each K. ``of``: what the application depends on."""

    def work(K: int) -> list[Row]:
        app, inverse, source = load()
        return timed_rows(app, K, inverse, settings["calls"], source)

    for K in settings["K"]:
        yield Cell(f"K = {K}", partial(work, K), {**of, "K": K, "calls": settings["calls"], "turn": TURN})


def samples(records: Records, column: str, K: int) -> np.ndarray:
    """(calls, methods)."""
    return np.stack([np.asarray(records.values(column, K=K, method=name)[0], float) for name in METHODS], axis=1)


def ratio(records: Records, column: str, K: int) -> Interval:
    """DL-SGD over RT-MLMC, means."""
    return bootstrap(lambda pairs: float(pairs[:, 0].mean() / pairs[:, 1].mean()), samples(records, column, K))


def printed_ratio(paper: Paper, K: int) -> float:
    return paper[K][0][0] / paper[K][1][0] if K in paper else float("nan")


def drawn(records: Records, config: Config) -> Drawn:
    Ks, (figure, (left, right)), paper = records.distinct("K"), figures.panels(2), printed_in(config)
    printed = [K for K in Ks if K in paper]
    cross: Any = {"linestyle": "dotted", "marker": "x"}
    for i, method in enumerate(METHODS):
        figures.points(left, Ks, [mean(1e3 * samples(records, "seconds", K)[:, i]) for K in Ks], method)
        theirs = [1e3 * paper[K][i][0] for K in printed]
        left.plot(printed, theirs, color=figures.colour(method), label=f"{method}, paper", **cross)
    left.set(yscale="log", xlabel="K", ylabel="ms per gradient", title="time of one gradient", xticks=Ks)
    figures.points(right, Ks, [ratio(records, "seconds", K) for K in Ks], "RT-MLMC", "time, ours")
    counted = [ratio(records, "grad_g", K).value for K in Ks]
    right.plot(Ks, counted, color="0.4", marker="s", markersize=3, label="lower gradients, ours")
    right.plot(printed, [printed_ratio(paper, K) for K in printed], color="black", label="time, paper", **cross)
    right.set(yscale="log", xlabel="K", ylabel="DL-SGD / RT-MLMC", title="how much RT-MLMC saves", xticks=Ks)
    for panel in (left, right):
        figures.legend(panel, loc="upper left", room=0.15)
    return Drawn(figure, [table(records, paper)], {"what": config.texts["what"], "data": records.distinct("data")[0]})


def table(records: Records, paper: Paper) -> Table:
    """Mean and standard deviation of ours, what the paper prints, and the ratio in time."""
    milliseconds = lambda pair: f"{three_digits(1e3 * pair[0])} ({three_digits(1e3 * pair[1])})"
    rows = []
    for K in records.distinct("K"):
        ours = [milliseconds((column.mean(), column.std(ddof=1))) for column in samples(records, "seconds", K).T]
        theirs = [milliseconds(pair) for pair in paper[K]] if K in paper else ["-", "-"]
        rows.append((str(K), *ours, *theirs, str(ratio(records, "seconds", K)), str(ratio(records, "grad_g", K))))
    columns = [f"{method}, {whose}" for whose in ("ours", "paper") for method in METHODS]
    title = "Milliseconds of one gradient, mean (standard deviation); the paper calls its second column variance"
    return Table(title, ("K", *columns, "DL / RT", "DL / RT, lower gradients"), rows)


def level_1(records: Records, K: int) -> dict[str, Any]:
    """How much of RT-MLMC's time is there already at level 1, which does not depend on K; a lower gradient's time."""
    steps, seconds = (samples(records, column, K)[:, METHODS.index("RT-MLMC")] for column in ("grad_g", "seconds"))
    first, Ks = seconds[steps == steps.min()], sorted(records.distinct("K"))[-2:]
    share = Interval(*(part / seconds.mean() for part in mean(first)))
    words = {"steps": int(steps.min()), "first": float(1e3 * first.mean()), "share": share}
    if len(Ks) < 2:
        return words
    calls, times = ([samples(records, column, K)[:, 0].mean() for K in Ks] for column in ("grad_g", "seconds"))
    return words | {"each": float(1e6 * (times[1] - times[0]) / (calls[1] - calls[0])), "few": Ks[0], "many": Ks[1]}


def savings_on(config: Config, records: Records) -> Found:
    """DL-SGD over RT-MLMC at the largest K that the paper has."""
    Ks, paper, what = records.distinct("K"), printed_in(config), config.texts["what"]
    K = max([K for K in Ks if K in paper] or Ks)
    lines = {"DL-SGD over RT-MLMC, time": ratio(records, "seconds", K), "lower gradients": ratio(records, "grad_g", K)}
    printed = printed_ratio(paper, K)
    words = {"What": what[0].upper() + what[1:], "K": K, "printed": printed}
    words |= {"said": f"{printed:.1f}x" if K in paper else "not printed"}
    beyond = {"most": max(Ks), "beyond": ratio(records, "seconds", max(Ks))} if max(Ks) > K else {}
    return Found(lines, words={**words, **level_1(records, K), **beyond}, seeds=1)


def spread_of_levels(K: int) -> float:
    """RT-MLMC's standard deviation over its mean where all of its time is lower gradients: other work only adds."""
    gradients, p = 2.0 ** np.arange(2, K + 2) - 2, level_probabilities(K)
    return float(np.sqrt(p @ gradients**2 / (p @ gradients) ** 2 - 1))


def spread_on(config: Config, records: Records) -> Found:
    """The paper's second column for RT-MLMC, once as a variance and once as a standard deviation, over its mean."""
    paper = {K: pair[1] for K, pair in printed_in(config).items()}
    as_variance = {K: v**0.5 / m / spread_of_levels(K) for K, (m, v) in paper.items()}
    lines = {f"as a variance, standard deviation over that of levels, K = {K}": v for K, v in as_variance.items()}
    over = lambda times: float(times.std(ddof=1) / times.mean())
    there = [K for K in paper if K in records.distinct("K")]
    ours = {f"ours, standard deviation over mean, K = {K}": over(samples(records, "seconds", K)[:, 1]) for K in there}
    theirs = {f"the paper's second column over its first, K = {K}": v / m for K, (m, v) in paper.items()}
    apart = [K for K, times in as_variance.items() if times > 1]
    fits = all(v / m <= spread_of_levels(K) for K, (m, v) in paper.items())
    what = config.texts["what"]
    words = {"What": what[0].upper() + what[1:], "apart": apart, "fits": fits}
    return Found(lines, {**theirs, **ours}, words, seeds=1)
