r"""Complexity against the number M of tasks: RT-MLMC does not depend on it, BSVRB does.

Synthetic tasks in the form of the paper's meta-learning, with squared losses: task i is a point c_i,

.. math::
    g = \tfrac12 |y - c_i - \eta|^2 + \tfrac{\lambda}{2} |y - x|^2, \quad
    f = \tfrac12 |y - c_i - \eta'|^2, \quad \lambda = 2

The points are moved and scaled to mean 0 and covariance I exactly, so that F, x* = 0 and
grad F = (lambda / (1 + lambda))^2 x are the same for every M. Both methods see as many tasks per
step and choose their step size from a grid of the same size. BSVRB moves every row of its table
at every step, so its runs are cut at a budget of rows; a target that was not reached is a lower bound.

The target is reached where the mean over seeds of |grad F(x_t)|^2 is at most eps^2 from then on to
the end of the run. The first such t alone would not do: with stale rows x runs through x* = 0 and
away again, and a run that ends at |grad F|^2 = 18 would count as solved.
"""

from __future__ import annotations

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
from bilevelax.experiments._stationarity import square_of, steps_needed
from bilevelax.experiments._statistics import Interval, bootstrap, exponent
from bilevelax.experiments._trajectories import lanes, seed_keys, trajectories
from bilevelax.minibatch import minibatch
from bilevelax.problem import Problem

LAM, NOISE, D = 2.0, 0.5, 2
SLOPE = (LAM / (1 + LAM)) ** 2
GRIDS = {"RT-MLMC": [0.1, 0.03, 0.01], "BSVRB": [0.1, 0.03, 0.01]}
CHUNKS = 50
CONFIG = Config(
    title="Complexity against the number of tasks",
    place="Sections 1 and 4.1: the complexity of RT-MLMC does not depend on the number of tasks, that of BSVRB does",
    duration="about 5 minutes",
    scales={
        "smoke": {"seeds": 2, "M": [20, 40], "eps": 0.4, "blocks": 5, "K": 2, "T": 50, "rounds": 2, "rows": 4e3},
        "quick": {
            "seeds": 4,
            "M": [20, 100, 500],
            "eps": 0.1,
            "blocks": 10,
            "K": 6,
            "T": 500,
            "rounds": 20,
            "rows": 2e6,
        },
        "full": {
            "seeds": 4,
            "M": [20, 100, 500, 2000, 20000, 100000],
            "eps": 0.1,
            "blocks": 10,
            "K": 6,
            "T": 500,
            "rounds": 20,
            "rows": 2e6,
        },
    },
)
COUNTS = ("eta", "grad_g")


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


def rows_of(method: str, estimator: Estimator, M: int, settings: dict[str, Any], seeds: int) -> list[Row]:
    """One row for each seed and step size."""
    T = steps_of(method, M, settings)
    keys, scales = lanes(seed_keys(seeds), GRIDS[method])
    runs = trajectories(
        make(M),
        estimator,
        optax.sgd(1.0),
        jnp.full(D, 2.0, float),
        keys,
        T=T,
        every=T // CHUNKS,
        watch=square,
        scales=scales,
        together=False,
    )
    return [
        {
            "method": method,
            "M": M,
            "seed": lane // len(GRIDS[method]),
            "step": GRIDS[method][lane % len(GRIDS[method])],
            "T": T,
            "square": [float(f"{min(v, 1e30):.5g}") for v in np.nan_to_num(runs.values["square"][lane], nan=1e30)],
            **{name: float(runs.cost[name][lane, -1] / T) for name in COUNTS},
            "seconds_per_step": runs.seconds / T / len(keys),
        }
        for lane in range(len(keys))
    ]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    blocks = settings["blocks"]
    made = {"RT-MLMC": minibatch(rt_mlmc(settings["K"]), blocks, mode="loop"), "BSVRB": bsvrb(2, blocks=blocks)}
    for M in settings["M"]:
        for method, estimator in made.items():
            yield Cell(f"{method}, M = {M}", partial(rows_of, method, estimator, M, settings, seeds))


class Reached:
    """What one method needs for one M, with its best step size."""

    def __init__(self, records: Records, method: str, M: int, eps: float) -> None:
        rows = records.where(method=method, M=M)
        by_step = {step: [row for row in rows if row["step"] == step] for step in GRIDS[method]}
        curves = {step: np.asarray([row["square"] for row in group]) for step, group in by_step.items()}
        self.T = rows[0]["T"]
        needed = lambda c: steps_needed(c[:, 1:], self.T // CHUNKS, eps)
        found = {step: needed(c) for step, c in curves.items()}
        self.step = min(found, key=lambda step: np.inf if np.isnan(found[step]) else found[step])
        self.curves, self.row = curves[self.step], by_step[self.step][0]
        self.steps = bootstrap(needed, self.curves)
        self.reached = bool(np.isfinite(self.steps.value))

    def amount(self, per_step: float) -> Interval:
        """Of something counted per step; the whole run's where the target was not reached."""
        if not self.reached:
            return Interval(*3 * (self.T * per_step,))
        return Interval(*(part * per_step for part in self.steps))


def all_reached(records: Records, eps: float) -> dict[str, list[Reached]]:
    return {method: [Reached(records, method, M, eps) for M in records.settings["M"]] for method in GRIDS}


def growth(records: Records, method: str, eps: float) -> tuple[float, int]:
    """(exponent in M of the samples of eta, number of M at which the target was reached)."""
    each = all_reached(records, eps)[method]
    there = [(M, r.amount(r.row["eta"]).value) for M, r in zip(records.settings["M"], each, strict=True) if r.reached]
    return (exponent(*zip(*there, strict=True)) if len(there) > 1 else 0.0), len(there)


def render(records: Records, out: Path) -> Rendered:
    eps, Ms = records.settings["eps"], records.settings["M"]
    found = all_reached(records, eps)
    figure, axes = figures.panels(2)
    for method, each in found.items():
        for panel, column in zip(axes, ("eta", "seconds_per_step"), strict=True):
            draw(panel, Ms, each, column, method)
    for panel, label in zip(axes, ("samples of eta", "seconds"), strict=True):
        panel.set(xscale="log", yscale="log", xlabel="number of tasks M", ylabel=label, title=f"{label} to the target")
        panel.legend(frameon=False)
    caption = (
        f"Until E|grad F|^2 stays below {eps:g}^2, with the best step of a grid; 95 % intervals over seeds. Open "
        "triangles: the run ended before, a lower bound. Seconds depend on how busy the machine was at each cell."
    )
    path = figures.save(figure, out, "tasks")
    return Rendered([(path, caption)], [table(records, eps), table(records, 2 * eps)])


def draw(panel: Any, Ms: list[int], each: list[Reached], column: str, method: str) -> None:
    """Reached targets joined by a line, lower bounds as open triangles."""
    pairs = [(M, r.amount(r.row[column]), r.reached) for M, r in zip(Ms, each, strict=True)]
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
    for method, each in all_reached(records, eps).items():
        for M, r in zip(records.settings["M"], each, strict=True):
            more = "" if r.reached else "more than "
            cells = [f"{more}{r.amount(r.row[column]).value:.3g}" for column in (*COUNTS, "seconds_per_step")]
            rows.append((method, f"{M:,}", f"{r.step:g}", f"{more}{r.amount(1.0).value:.3g}", *cells))
    columns = ("method", "M", "best step", "steps", "samples of eta", "gradients of g", "seconds")
    return Table(f"To |grad F| = {eps:g}", columns, rows)


def claims(records: Records) -> list[Claim]:
    eps, Ms, seeds = records.settings["eps"], records.settings["M"], records.settings["seeds"]
    (rt, rt_n), (rt_easy, _) = growth(records, "RT-MLMC", eps), growth(records, "RT-MLMC", 2 * eps)
    (bsvrb_power, n), last = growth(records, "BSVRB", eps), all_reached(records, eps)["BSVRB"]
    missed = [f"{M:,} ({r.T:,} steps)" for M, r in zip(Ms, last, strict=True) if not r.reached]
    return [
        Claim(
            "The complexity of RT-MLMC does not depend on the number of tasks",
            "exponent 0 in M",
            f"exponent {rt:.2f} in M at |grad F| = {eps:g}, {rt_easy:.2f} at {2 * eps:g}; "
            f"reached for {rt_n} of {len(Ms)} M",
            seeds,
            Claim.judge(abs(rt) < 0.1 and rt_n == len(Ms), rt < 0.1 and rt_n == len(Ms)),
            f"M = {Ms[0]} to {Ms[-1]:,}; F is the same for every M. Where the noise of the largest step sometimes "
            "exceeds the target a smaller one counts, which makes the number of steps jump; it never grows with M.",
        ),
        Claim(
            "That of BSVRB grows with the number of tasks",
            "exponent 1 in M",
            f"exponent {bsvrb_power:.2f} in M over the {n} M at which it reached |grad F| = {eps:g}"
            + (f"; not reached at M = {', '.join(missed)}" if missed else ""),
            seeds,
            Claim.judge(n > 2 and bsvrb_power > 0.5, bool(missed) or bsvrb_power > 0.2),
            "A row of its table is visited once in M/I steps, and every step moves all M rows. Runs with the most "
            "tasks end before every row was visited once: they show the cost of a step, not how many it takes. For the "
            "fewest tasks BSVRB needs fewer samples than RT-MLMC: it keeps its answers.",
        ),
    ]
