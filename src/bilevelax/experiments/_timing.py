"""Time of one gradient, DL-SGD against RT-MLMC, by K: what tables 2 and 3 share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random

from bilevelax.applications import Application
from bilevelax.estimate import Cost, Estimator
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.experiments import _figures as figures
from bilevelax.experiments._items import Cell, Claim, Records, Rendered, Row, Table
from bilevelax.experiments._statistics import Interval, bootstrap, mean, number
from bilevelax.inverse import InverseHessian
from bilevelax.problem import Key, Problem, X

METHODS = ("DL-SGD", "RT-MLMC")
TURN = 20  # calls of one method before it is the other's turn: a long call of the other leaves caches cold


class Printed(NamedTuple):
    """Seconds in the paper's table: mean and what it calls variance."""

    mean: float
    spread: float


Paper = Mapping[int, tuple[Printed, Printed]]  # K -> (DL-SGD, RT-MLMC)


@partial(jax.jit, static_argnames="estimator")
def gradient(key: Key, problem: Problem, x: X, estimator: Estimator) -> tuple[X, Cost]:
    est, _ = estimator.estimate(key, problem, x, ())
    return est.grad, est.cost


def timed(app: Application, K: int, inverse: InverseHessian | None, calls: int, source: str) -> list[Row]:
    """Seconds of every call, the two methods taking turns; compiled before. Contexts and levels are drawn anew."""
    estimators = {"DL-SGD": dl_sgd(K, inverse=inverse), "RT-MLMC": rt_mlmc(K, inverse=inverse)}
    once = {name: partial(gradient, estimator=estimator) for name, estimator in estimators.items()}
    for call in once.values():
        jax.block_until_ready(call(random.key(calls), app.problem, app.x1))
    seconds: dict[str, list[float]] = {name: [] for name in once}
    steps: dict[str, list[int]] = {name: [] for name in once}
    for block in range(0, calls, TURN):
        for name, call in once.items():
            for i in range(block, min(block + TURN, calls)):
                started = time.perf_counter()
                _, cost = jax.block_until_ready(call(random.key(i), app.problem, app.x1))
                seconds[name].append(time.perf_counter() - started)
                steps[name].append(int(cost.grad_g))
    return [
        {"K": K, "method": name, "calls": calls, "data": source, "grad_g": steps[name], "seconds": seconds[name]}
        for name in once
    ]


def cells(
    settings: Mapping[str, Any],
    load: Callable[[], tuple[Application, InverseHessian | None, str]],
    of: Mapping[str, Any],
) -> Iterator[Cell]:
    """One for each K. ``of``: what the application depends on."""

    def work(K: int) -> list[Row]:
        app, inverse, source = load()
        return timed(app, K, inverse, settings["calls"], source)

    for K in settings["K"]:
        yield Cell(f"K = {K}", partial(work, K), {**of, "K": K, "calls": settings["calls"], "turn": TURN})


def samples(records: Records, column: str, K: int) -> np.ndarray:
    """(calls, methods)."""
    return np.stack([np.asarray(records.values(column, K=K, method=name)[0], float) for name in METHODS], axis=1)


def ratio(records: Records, column: str, K: int) -> Interval:
    """DL-SGD over RT-MLMC, means."""
    return bootstrap(lambda pairs: float(pairs[:, 0].mean() / pairs[:, 1].mean()), samples(records, column, K))


def render(records: Records, out: Path, name: str, title: str, paper: Paper) -> Rendered:
    Ks = records.distinct("K")
    figure, axes = figures.panels(2)
    for i, method in enumerate(METHODS):
        found = [mean(1e3 * samples(records, "seconds", K)[:, i]) for K in Ks]
        figures.points(axes[0], Ks, found, method)
        printed = [K for K in Ks if K in paper]
        axes[0].plot(
            printed,
            [1e3 * paper[K][i].mean for K in printed],
            color=figures.colour(method),
            linestyle="dotted",
            marker="x",
            label=f"{method}, paper",
        )
    axes[0].set(yscale="log", xlabel="K", ylabel="ms per gradient", title="time of one gradient", xticks=Ks)
    figures.legend(axes[0], loc="upper left", room=0.15)
    figures.points(axes[1], Ks, [ratio(records, "seconds", K) for K in Ks], "RT-MLMC", "time, ours")
    counted = [ratio(records, "grad_g", K).value for K in Ks]
    axes[1].plot(Ks, counted, color="0.4", marker="s", markersize=3, label="lower gradients, ours")
    figures.paper_value(axes[1], printed, [paper[K][0].mean / paper[K][1].mean for K in printed], "time, paper")
    axes[1].set(yscale="log", xlabel="K", ylabel="DL-SGD / RT-MLMC", title="how much RT-MLMC saves", xticks=Ks)
    figures.legend(axes[1], loc="upper left", room=0.15)
    caption = (
        f"Time of one gradient, {title}, {records.distinct('data')[0]}; mean over "
        f"{records.settings['calls']} calls, one context and single samples. Crosses: the paper."
    )
    return Rendered([(figures.save(figure, out, name), caption)], [table(records, paper)])


def table(records: Records, paper: Paper) -> Table:
    rows = []
    for K in records.distinct("K"):
        both, line = samples(records, "seconds", K), [str(K)]
        for i in range(2):
            printed = paper.get(K)
            ours = (both[:, i].mean(), both[:, i].std(ddof=1))
            for pair in (ours, printed and printed[i]):
                line.append(f"{number(1e3 * pair[0])} ({number(1e3 * pair[1])})" if pair else "-")
        shown = f"{paper[K][0].mean / paper[K][1].mean:.1f}" if K in paper else "-"
        rows.append((*line, str(ratio(records, "seconds", K)), shown, str(ratio(records, "grad_g", K))))
    columns = ["K"]
    for method in METHODS:
        columns += [f"{method}, ours", f"{method}, paper"]
    return Table(
        "Milliseconds of one gradient, mean (standard deviation); the paper calls its second column variance",
        (*columns, "DL / RT", "paper", "DL / RT, lower gradients"),
        rows,
    )


def apart_from_K(records: Records, K: int) -> str:
    """How much of RT-MLMC's time is there already at level 1, which does not depend on K."""
    steps, seconds = (samples(records, column, K)[:, METHODS.index("RT-MLMC")] for column in ("grad_g", "seconds"))
    first = seconds[steps == steps.min()]
    share = Interval(*(part / seconds.mean() for part in mean(first)))
    words = (
        f"A gradient of level 1, with {steps.min():g} lower gradients, takes {number(1e3 * first.mean())} ms, {share} "
        f"of RT-MLMC's mean at K = {K}"
    )
    Ks = sorted(records.distinct("K"))[-2:]
    if len(Ks) == 2:
        calls, times = ([samples(records, column, K)[:, 0].mean() for K in Ks] for column in ("grad_g", "seconds"))
        each = (times[1] - times[0]) / (calls[1] - calls[0])
        words += f", and a further lower gradient {number(1e6 * each)} us (DL-SGD, K = {Ks[0]} to {Ks[1]})"
    return words + ": what level 1 takes (Neumann products at three points instead of one, dispatch) hides the ratio."


def faster(records: Records, paper: Paper, words: str) -> Claim:
    """RT-MLMC is an order of magnitude cheaper at the largest K."""
    Ks: Sequence[int] = records.distinct("K")
    K = max([K for K in Ks if K in paper] or Ks)
    beyond = (
        f" Beyond the paper's K, at {max(Ks)}: {ratio(records, 'seconds', max(Ks))}x in time." if max(Ks) > K else ""
    )
    time_ratio, counted = ratio(records, "seconds", K), ratio(records, "grad_g", K)
    printed = paper[K][0].mean / paper[K][1].mean if K in paper else float("nan")
    return Claim(
        f"{words}: RT-MLMC needs an order of magnitude less time per gradient than DL-SGD at K = {K}",
        f"{printed:.1f}x" if K in paper else "not printed",
        f"{time_ratio}x in time, {counted}x in lower gradients ({records.settings['calls']} calls of each)",
        1,
        Claim.judge(time_ratio.low >= min(printed, 10), time_ratio.low > 2),
        "In lower gradients the ratio is (2^(K+1) - 2) / (2K/(1 - 2^-K) - 2). " + apart_from_K(records, K) + beyond,
    )
