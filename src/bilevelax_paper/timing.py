"""Time of one gradient, DL-SGD against RT-MLMC, by K: what tables 2 and 3 share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import bilevelax as bx
from bilevelax.applications import Application
from bilevelax.base.compiling import program
from bilevelax.base.statistics import Interval, mean
from bilevelax.base.text_table import three_digits
from bilevelax.base.timing import both_clocks, in_own_process
from bilevelax.cli._terminal import keep_programs
from bilevelax.core.inverse import InverseHessian
from bilevelax.core.problem import Key, X
from bilevelax.estimators.rt_mlmc import level_probabilities
from bilevelax_paper import figures
from bilevelax_paper.claims import Found, Rule, where
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row, Table

METHODS = ("DL-SGD", "RT-MLMC")
WALL, ALONE, TOGETHER = "seconds", "seconds_cpu", "seconds_together_cpu"  # of a call; the latter two of the processor
FAST = where(lambda effect: Interval.of(effect).low >= 8.7)
POSSIBLE = Rule(lambda found: not found.words["apart"])  # of `spread`
TURN = 20  # calls of one method before it is the other's turn: a long call of the other leaves caches cold


Loader = Callable[[Row], tuple[Application, InverseHessian | None, str]]  # of the item's settings
Paper = Mapping[int, Sequence[Sequence[float]]]  # K -> DL-SGD, RT-MLMC: seconds, mean and what it calls variance


def printed_in(config: Config) -> Paper:
    return {int(K): pair for K, pair in config.texts["printed"].items()}


@program(static_argnames="estimator")
def gradient(key: Key, problem: bx.Problem, x: X, estimator: bx.Estimator) -> tuple[X, bx.Cost]:
    est, _ = estimator.estimate(key, problem, x, ())
    return est.grad, est.cost


@program(static_argnames="estimator")
def gradients(keys: Key, problem: bx.Problem, x: X, estimator: bx.Estimator) -> X:
    """Their mean, one after another in one program."""
    return jax.tree.map(lambda a: a.mean(0), lax.map(lambda key: gradient(key, problem, x, estimator)[0], keys))


def timed_rows(app: Application, K: int, inverse: InverseHessian | None, keys: list[Key], of: Row) -> list[Row]:
    """Seconds of every call, the two methods taking turns, and of all in one program; compiled before."""
    estimators = {"DL-SGD": bx.dl_sgd(K, inverse=inverse), "RT-MLMC": bx.rt_mlmc(K, inverse=inverse)}
    row = lambda name: {**of, "K": K, "method": name, "grad_g": [], WALL: [], ALONE: []}
    rows: dict[str, Row] = {name: row(name) for name in METHODS}
    at = lambda name: {"problem": app.problem, "x": app.x1, "estimator": estimators[name]}
    stacked = jnp.stack(keys)
    for name in METHODS:
        jax.block_until_ready((gradient(keys[0], **at(name)), gradients(stacked, **at(name))))
    for block in range(0, len(keys), TURN):
        for name in METHODS:
            for key in keys[block : block + TURN]:
                seconds, worked, (_, cost) = both_clocks(partial(gradient, key, **at(name)))
                for column, value in ((WALL, seconds), (ALONE, worked), ("grad_g", int(cost.grad_g))):
                    rows[name][column].append(round(value, 7))
    for name in METHODS:
        rows[name]["seconds_together"], rows[name][TOGETHER], _ = both_clocks(partial(gradients, stacked, **at(name)))
    return list(rows.values())


def process(load: Loader, settings: Row, seed: int) -> list[Row]:
    """The rows of one seed at all K, in whatever process this is; keys are made before."""
    keep_programs()
    app, inverse, source = load(settings)
    keys = list(jax.block_until_ready(random.split(random.key(seed), settings["calls"])))
    of = {"seed": seed, "calls": settings["calls"], "data": source}
    return [row for K in settings["K"] for row in timed_rows(app, K, inverse, keys, of)]


def cells(settings: Row, seeds: int, load: Loader, of: Row) -> Iterator[Cell]:
    """A process of its own for each seed. ``of``: what the application depends on."""

    for seed in range(seeds):
        depends = {**of, "K": settings["K"], "calls": settings["calls"], "turn": TURN, "seed": seed}
        yield Cell(f"process {seed}", partial(in_own_process, process, load, settings, seed), depends)


def samples(records: Records, column: str, K: int) -> np.ndarray:
    """(calls, methods), those of all processes one after another."""
    each = [np.ravel(records.values(column, K=K, method=name)) for name in METHODS]
    return np.stack([np.asarray(calls, float) for calls in each], axis=1)


def each_process(records: Records, column: str, K: int) -> np.ndarray:
    """(processes, methods), means of the calls."""
    return np.stack([[np.mean(v) for v in records.values(column, K=K, method=name)] for name in METHODS], axis=1)


def ratio(records: Records, column: str, K: int) -> Interval:
    """DL-SGD over RT-MLMC, in the mean over processes."""
    return mean(np.divide(*each_process(records, column, K).T))


def printed_ratio(paper: Paper, K: int) -> float:
    return paper[K][0][0] / paper[K][1][0] if K in paper else float("nan")


def drawn(records: Records, config: Config) -> Drawn:
    Ks, (figure, (left, right)), paper = records.distinct("K"), figures.panels(2), printed_in(config)
    printed = [K for K in Ks if K in paper]
    cross: Any = {"linestyle": "dotted", "marker": "x"}
    for i, method in enumerate(METHODS):
        figures.points(left, Ks, [mean(1e3 * each_process(records, ALONE, K)[:, i]) for K in Ks], method)
        theirs = [1e3 * paper[K][i][0] for K in printed]
        left.plot(printed, theirs, color=figures.colour(method), label=f"{method}, paper", **cross)
    left.set(yscale="log", xlabel="K", ylabel="ms per gradient", title="time of one gradient", xticks=Ks)
    figures.points(right, Ks, [ratio(records, ALONE, K) for K in Ks], "RT-MLMC", "time, called alone")
    together = [ratio(records, TOGETHER, K) for K in Ks]
    figures.points(right, Ks, together, "RT-MLMC", "time, many in one program", linestyle="dashed")
    counted = [ratio(records, "grad_g", K).value for K in Ks]
    right.plot(Ks, counted, color="0.4", marker="s", markersize=3, label="lower gradients, ours")
    right.plot(printed, [printed_ratio(paper, K) for K in printed], color="black", label="time, paper", **cross)
    right.set(yscale="log", xlabel="K", ylabel="DL-SGD / RT-MLMC", title="how much RT-MLMC saves", xticks=Ks)
    for panel in (left, right):
        figures.legend(panel, loc="upper left", room=0.5)
    return Drawn(figure, [table(records, paper)], {"what": config.texts["what"], "data": records.distinct("data")[0]})


def table(records: Records, paper: Paper) -> Table:
    """Mean and standard deviation of ours, what the paper prints, and the ratio in time."""
    milliseconds = lambda pair: f"{three_digits(1e3 * pair[0])} ({three_digits(1e3 * pair[1])})"
    rows = []
    for K in records.distinct("K"):
        ours = [milliseconds((column.mean(), column.std(ddof=1))) for column in samples(records, ALONE, K).T]
        theirs = [milliseconds(pair) for pair in paper[K]] if K in paper else ["-", "-"]
        rows.append((str(K), *ours, *theirs, *(str(ratio(records, name, K)) for name in (ALONE, TOGETHER, "grad_g"))))
    columns = [f"{method}, {whose}" for whose in ("ours", "paper") for method in METHODS]
    title = "Milliseconds of one gradient, ours of the processor, mean (standard deviation); the paper: variance"
    ratios = ("DL / RT", "many in one program", "lower gradients")
    return Table(title, ("K", *columns, *ratios), rows)


def level_1(records: Records, K: int) -> dict[str, Any]:
    """How much of RT-MLMC's time is there already at level 1, which does not depend on K."""
    steps, seconds = (samples(records, column, K)[:, METHODS.index("RT-MLMC")] for column in ("grad_g", ALONE))
    first = seconds[steps == steps.min()]
    share = Interval(*(part / seconds.mean() for part in mean(first)))
    return {"steps": int(steps.min()), "first": float(1e3 * first.mean()), "share": share}


def savings(records: Records, config: Config) -> Found:
    """DL-SGD over RT-MLMC at the largest K that the paper has."""
    Ks, paper, what = records.distinct("K"), printed_in(config), config.texts["what"]
    K = max([K for K in Ks if K in paper] or Ks)
    named = {"called alone, processor": ALONE, "called alone, clock": WALL, "many in one program, processor": TOGETHER}
    lines: Any = {f"DL-SGD over RT-MLMC, {name}": ratio(records, column, K) for name, column in named.items()}
    printed = printed_ratio(paper, K)
    words = {"What": what[0].upper() + what[1:], "K": K, "printed": printed}
    words |= {"said": f"{printed:.1f}x" if K in paper else "not printed"}
    beyond = {"most": max(Ks), "beyond": ratio(records, ALONE, max(Ks))} if max(Ks) > K else {}
    return Found(lines, {"lower gradients": ratio(records, "grad_g", K)}, {**words, **level_1(records, K), **beyond})


def spread_of_levels(K: int) -> float:
    """RT-MLMC's standard deviation over its mean where all of its time is lower gradients: other work only adds."""
    gradients, p = 2.0 ** np.arange(2, K + 2) - 2, level_probabilities(K)
    return float(np.sqrt(p @ gradients**2 / (p @ gradients) ** 2 - 1))


def spread(records: Records, config: Config) -> Found:
    """The paper's second column for RT-MLMC, once as a variance and once as a standard deviation, over its mean."""
    paper = {K: pair[1] for K, pair in printed_in(config).items()}
    as_variance = {K: v**0.5 / m / spread_of_levels(K) for K, (m, v) in paper.items()}
    lines = {f"as a variance, standard deviation over that of levels, K = {K}": v for K, v in as_variance.items()}
    over = lambda times: float(times.std(ddof=1) / times.mean())
    there = [K for K in paper if K in records.distinct("K")]
    ours = {f"ours, standard deviation over mean, K = {K}": over(samples(records, ALONE, K)[:, 1]) for K in there}
    theirs = {f"the paper's second column over its first, K = {K}": v / m for K, (m, v) in paper.items()}
    apart = [K for K, times in as_variance.items() if times > 1]
    fits = all(v / m <= spread_of_levels(K) for K, (m, v) in paper.items())
    what = config.texts["what"]
    words = {"What": what[0].upper() + what[1:], "apart": apart, "fits": fits}
    return Found(lines, {**theirs, **ours}, words)


def rules(config: Config) -> dict[Any, Rule]:
    """Of the claims that both tables have."""
    return {partial(savings, config=config): FAST, partial(spread, config=config): POSSIBLE}
