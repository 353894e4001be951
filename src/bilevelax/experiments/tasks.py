r"""Complexity against the number M of tasks: RT-MLMC does not depend on it, BSVRB does.

Synthetic tasks in the form of the paper's meta-learning, with squared losses: task i is a point c_i,

.. math::
    g = \tfrac12 |y - c_i - \eta|^2 + \tfrac{\lambda}{2} |y - x|^2, \quad
    f = \tfrac12 |y - c_i - \eta'|^2, \quad \lambda = 2

The points are moved and scaled to mean 0 and covariance I exactly, so that F, x* = 0 and
grad F = (lambda / (1 + lambda))^2 x are the same for every M. Both methods see as many tasks per
step and have the same grid of step sizes. BSVRB takes the best of them for each M: its rows grow
stale as M grows, and the largest step that does not diverge shrinks. RT-MLMC takes one step size for
all M, the one whose worst M needs the fewest steps. BSVRB's runs visit every task 20 times on average,
and are cut at a budget of table rows; a target that was not reached is a lower bound.

The target is reached where the mean over seeds of |grad F(x_t)|^2 is at most eps^2 from then on to
the end of the run, and through its last tenth at least. The first such t alone would not do: with stale
rows x runs through x* = 0 and away again, and a run that ends at |grad F|^2 = 18 would count as solved.

Seconds of a step are measured apart from the runs, all methods and M taking turns, so that their
ratios do not depend on what else the machine does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import random

from bilevelax.estimate import Estimator
from bilevelax.estimators.bsvrb import bsvrb
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.experiments import _figures as figures
from bilevelax.experiments._items import Cell, Claim, Config, Records, Rendered, Row, Table
from bilevelax.experiments._stationarity import square_of
from bilevelax.experiments._statistics import Interval, number
from bilevelax.experiments._tasks_needed import COUNTS, Needed
from bilevelax.experiments._trajectories import Trajectories, lanes, seed_keys, trajectories
from bilevelax.minibatch import minibatch
from bilevelax.problem import Problem

LAM, NOISE, D = 2.0, 0.5, 2
SLOPE = (LAM / (1 + LAM)) ** 2
METHODS = ("RT-MLMC", "BSVRB")
CHUNKS = 50
UNIT_STEP = optax.sgd(1.0)
REAL = {"seeds": 8, "eps": 0.1, "blocks": 10, "K": 6, "T": 500, "rounds": 20, "rows": 6e8, "turns": 3}
CONFIG = Config(
    title="Complexity against the number of tasks",
    place="Sections 1 and 4.1: the complexity of RT-MLMC does not depend on the number of tasks, that of BSVRB does",
    duration="about 10 minutes",
    scales={
        "smoke": {
            "seeds": 2,
            "eps": 0.4,
            "blocks": 2,
            "K": 2,
            "T": 50,
            "rounds": 2,
            "rows": 4e3,
            "turns": 2,
            "M": [10, 20],
            "steps": [0.1, 0.03],
        },
        "quick": {**REAL, "seeds": 4, "M": [20, 100, 500], "steps": [0.1, 0.03, 0.01]},
        "full": {
            **REAL,
            "M": [20, 100, 500, 2000, 20000, 100000],
            "steps": [0.1, 0.03, 0.01, 0.003, 0.001, 0.0003],
        },
    },
)


@functools.cache
def make(M: int) -> Problem:
    """M tasks; the points are data of the problem."""
    points = np.random.default_rng(M).normal(size=(M, D))
    points = points - points.mean(0)
    points = points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / M)).T
    context_at = lambda i, data: data[i]
    return Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - xi - eta[1]) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - xi - eta[0]) ** 2) / 2 + LAM * jnp.sum((y - x) ** 2) / 2,
        sample_context=lambda key, data: context_at(random.randint(key, (), 0, M), data),
        sample_conditional=lambda key, xi, data: NOISE * random.normal(key, (2, D), float),
        init_y=lambda x, xi: x,
        data=jnp.asarray(points, float),
        mu_g=1 + LAM,
        L_g1=1 + LAM,
        n_contexts=M,
        context_at=context_at,
    )


square = square_of(lambda x: SLOPE * x)


def steps_of(method: str, M: int, settings: dict[str, Any]) -> int:
    """Length of a run: the same for every M, or so many visits to every task as the budget allows."""
    wanted = settings["T"] if method == "RT-MLMC" else settings["T"] + settings["rounds"] * M / settings["blocks"]
    allowed = wanted if method == "RT-MLMC" else min(wanted, settings["rows"] / M)
    return CHUNKS * max(1, round(allowed / CHUNKS))


def lanes_run(estimator: Estimator, M: int, settings: dict[str, Any], seeds: int, T: int) -> Trajectories:
    """Every seed with every step size, one after another."""
    keys, scales = lanes(seed_keys(seeds), settings["steps"])
    start = jnp.full(D, 2.0, float)
    return trajectories(
        make(M),
        estimator,
        UNIT_STEP,
        start,
        keys,
        T=T,
        every=T // CHUNKS,
        watch=square,
        scales=scales,
        together=False,
    )


def rows_of(method: str, estimator: Estimator, M: int, settings: dict[str, Any], seeds: int) -> list[Row]:
    """One row for each seed and step size."""
    T, steps = steps_of(method, M, settings), settings["steps"]
    runs = lanes_run(estimator, M, settings, seeds, T)
    return [
        {
            "kind": "run",
            "method": method,
            "M": M,
            "seed": lane // len(steps),
            "step": steps[lane % len(steps)],
            "T": T,
            "square": [float(f"{min(v, 1e30):.5g}") for v in np.nan_to_num(runs.values["square"][lane], nan=1e30)],
            **{name: float(runs.cost[name][lane, -1] / T) for name in COUNTS},
        }
        for lane in range(seeds * len(steps))
    ]


def timed(made: dict[str, Estimator], settings: dict[str, Any], seeds: int) -> list[Row]:
    """Seconds of a step, compilation apart, by turns."""
    rows: list[Row] = []
    for turn in range(settings["turns"]):
        for M in settings["M"]:
            for method, estimator in made.items():
                runs = lanes_run(estimator, M, settings, seeds, CHUNKS)
                each = runs.seconds / CHUNKS / seeds / len(settings["steps"])
                rows.append({"kind": "time", "method": method, "M": M, "turn": turn, "seconds_per_step": each})
    return rows


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    blocks = settings["blocks"]
    made = {"RT-MLMC": minibatch(rt_mlmc(settings["K"]), blocks, mode="loop"), "BSVRB": bsvrb(2, blocks=blocks)}
    used = ("blocks", "K", "T", "rounds", "rows", "steps")
    of = {**{name: settings[name] for name in used}, "chunks": CHUNKS, "problem": [LAM, NOISE, D]}
    for M in settings["M"]:
        for method, estimator in made.items():
            work = partial(rows_of, method, estimator, M, settings, seeds)
            yield Cell(f"{method}, M = {M}", work, {**of, "method": method, "M": M})
    timing = {**of, "M": settings["M"], "turns": settings["turns"]}
    yield Cell("seconds of a step", partial(timed, made, settings, seeds), timing)


def render(records: Records, out: Path) -> Rendered:
    eps, Ms = records.settings["eps"], records.settings["M"]
    figure, axes = figures.panels(2)
    for method in METHODS:
        found = Needed(records, method, eps)
        for panel, column in zip(axes, ("eta", "seconds_per_step"), strict=True):
            draw(panel, Ms, found.amounts(column), found.reached, method)
    for panel, label in zip(axes, ("samples of eta", "seconds"), strict=True):
        panel.set(xscale="log", yscale="log", xlabel="number of tasks M", ylabel=label, title=f"{label} to the target")
        panel.legend(frameon=False)
    caption = (
        f"Until E|grad F|^2 stays below {eps:g}^2; 95 % intervals over seeds. RT-MLMC with one step size for all M, "
        "BSVRB with the best for each. Open triangles: the run ended before, a lower bound."
    )
    path = figures.save(figure, out, "tasks")
    return Rendered([(path, caption)], [table(records, eps), table(records, 2 * eps)])


def draw(panel: Any, Ms: list[int], amounts: list[Interval], reached: list[bool], method: str) -> None:
    """Reached targets joined by a line, lower bounds as open triangles."""
    pairs = list(zip(Ms, amounts, reached, strict=True))
    there = [(M, amount) for M, amount, reached in pairs if reached]
    if there:
        figures.points(panel, [M for M, _ in there], [amount for _, amount in there], method)
    late = [(M, amount.value) for M, amount, reached in pairs if not reached]
    if late:
        look = {"linestyle": "none", "marker": "^", "markerfacecolor": "none", "color": figures.colour(method)}
        panel.plot(*zip(*late, strict=True), label=f"{method}, more than", **look)


def table(records: Records, eps: float) -> Table:
    """Steps, calls and seconds for one target."""
    rows = []
    for method in METHODS:
        found = Needed(records, method, eps)
        columns = [found.amounts(column) for column in (None, *COUNTS, "seconds_per_step")]
        for i, (M, step) in enumerate(zip(records.settings["M"], found.step, strict=True)):
            more = "" if found.reached[i] else "more than "
            rows.append((method, f"{M:,}", f"{step:g}", *(f"{more}{number(column[i].value)}" for column in columns)))
    names = ("method", "M", "step", "steps", "samples of eta", "gradients of g", "seconds")
    return Table(f"To |grad F| = {eps:g}", names, rows)


def claims(records: Records) -> list[Claim]:
    eps, Ms, seeds = records.settings["eps"], records.settings["M"], records.settings["seeds"]
    rt, bsvrb_ = (Needed(records, method, eps) for method in METHODS)
    easy = Needed(records, "RT-MLMC", 2 * eps)
    flat, grown = (found.growth("eta") for found in (rt, bsvrb_))
    n, slower = sum(bsvrb_.reached), bsvrb_.growth("seconds_per_step")
    last = max((i for i, reached in enumerate(bsvrb_.reached) if reached), default=0)
    missed = [f"{M:,} in {T:,} steps" for M, T, r in zip(Ms, bsvrb_.T, bsvrb_.reached, strict=True) if not r]
    return [
        Claim(
            "The complexity of RT-MLMC does not depend on the number of tasks",
            "exponent 0 in M",
            f"samples of eta: exponent {flat} in M at |grad F| = {eps:g}, {easy.growth('eta')} at {2 * eps:g}; "
            f"seconds: {rt.growth('seconds_per_step')}; reached for {sum(rt.reached)} of {len(Ms)} M",
            seeds,
            Claim.judge(
                flat.low > -0.05 and flat.high < 0.05 and all(rt.reached), flat.value < 0.1 and all(rt.reached)
            ),
            f"M = {Ms[0]} to {Ms[-1]:,}, one step size for all, {rt.step[0]:g}; F is the same for every M.",
        ),
        Claim(
            "That of BSVRB grows with the number of tasks",
            "exponent 1 in M",
            f"samples of eta: exponent {grown} in M, seconds: {slower}, over the {n} M at "
            f"which it reached |grad F| = {eps:g}" + (f"; not reached at M = {', '.join(missed)}" if missed else ""),
            seeds,
            Claim.judge(n > 2 and grown.low > 0.5, grown.value > 0.2),
            "A row of its table is visited once in M/I steps, and x may move no faster than the rows follow: the best "
            f"step size is {bsvrb_.step[0]:g} at M = {Ms[0]} and {bsvrb_.step[last]:g} at M = {Ms[last]:,}. "
            + ("Every step moves all M rows, hence more than that in seconds. " if slower.value > grown.value else "")
            + crossing(Ms, rt, bsvrb_),
        ),
    ]


def crossing(Ms: list[int], rt: Needed, bsvrb_: Needed) -> str:
    """From which M on RT-MLMC needs fewer samples, and less time: intervals apart there and at every larger M."""
    words = []
    for column, name in (("eta", "fewer samples"), ("seconds_per_step", "less time")):
        pairs = list(zip(Ms, rt.amounts(column), bsvrb_.amounts(column), strict=True))
        not_yet = [i for i, (_, ours, theirs) in enumerate(pairs) if not ours.high < theirs.low]
        first = not_yet[-1] + 1 if not_yet else 0
        words.append(f"{name} from M = {Ms[first]:,} on" if first < len(Ms) else f"at no M {name}")
    return f"RT-MLMC needs {' and '.join(words)} (intervals apart); below, BSVRB gains by keeping its answers."
