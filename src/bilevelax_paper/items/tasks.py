"""Complexity against the number M of tasks: RT-MLMC does not depend on it, BSVRB does.

Tasks are points c_i of mean 0 and covariance I, g = |y - c_i - eta|^2 / 2 + |y - x|^2 and f = |y - c_i - eta'|^2 / 2,
so that F and x* = 0 are the same for every M. BSVRB's rows grow stale as M grows. The target counts as reached where
E|grad F(x_t)|^2 is at most eps^2 from then on to the end of the run: with stale rows x runs through x* and away again.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.base.statistics import Interval
from bilevelax.base.text_table import three_digits
from bilevelax.base.totals import Totals
from bilevelax.run.records.cells import rounded
from bilevelax_paper import figures
from bilevelax_paper.claims import Found, Rule, claims_of
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row, Table
from bilevelax_paper.stationarity import SECONDS, square_of
from bilevelax_paper.training import Trajectories, lanes, seed_keys, trajectories

LAM, NOISE, D = 2.0, 0.5, 2
SLOPE = (LAM / (1 + LAM)) ** 2
METHODS = ("RT-MLMC", "BSVRB")
CHUNKS = 50
COUNTS = ("eta", "grad_g")
HELD = 0.9  # the target counts as reached if that happened within this part of the run, and held since
CONFIG = Config.read(__file__)


@functools.cache
def make(M: int) -> bx.Problem:
    """M tasks; the points are data of the problem."""
    points = np.random.default_rng(M).normal(size=(M, D))
    points = points - points.mean(0)
    points = points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / M)).T
    context_at = lambda i, data: data[i]
    return bx.Problem(
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
    allowed = settings["T"]
    if method == "BSVRB":
        allowed = min(allowed + settings["rounds"] * M / settings["blocks"], settings["rows"] / M)
    return CHUNKS * max(1, round(allowed / CHUNKS))


def lanes_run(estimator: bx.Estimator, M: int, settings: dict[str, Any], seeds: int, T: int) -> Trajectories:
    """Every seed with every step size, one after another."""
    keys, scales = lanes(seed_keys(seeds), settings["steps"])
    how: Any = {"T": T, "every": T // CHUNKS, "watch": square, "scales": scales, "together": False}
    return trajectories(make(M), estimator, optax.sgd, jnp.full(D, 2.0, float), keys, **how)


def rows_of(
    method: str, estimator: bx.Estimator, M: int, settings: dict[str, Any], seeds: int, setting: str = ""
) -> Iterator[Row]:
    """One row for each seed and step size; ``setting`` is of BSVRB, where it is not its own."""
    T, steps = steps_of(method, M, settings), settings["steps"]
    runs = lanes_run(estimator, M, settings, seeds, T)
    squares = rounded(np.minimum(np.nan_to_num(runs.values["square"], nan=1e30), 1e30))
    for lane, curve in enumerate(squares):
        seed, step = divmod(lane, len(steps))
        row = {"kind": "run", "method": method, "M": M, "seed": seed, "step": steps[step], "T": T, "square": curve}
        yield row | ({"setting": setting} if setting else {}) | runs.per_step(lane, COUNTS)


def timed(made: dict[str, bx.Estimator], settings: dict[str, Any], seeds: int) -> Iterator[Row]:
    """Seconds of a step, compilation apart, by turns."""
    for turn, M, method in itertools.product(range(settings["turns"]), settings["M"], made):
        runs = lanes_run(made[method], M, settings, seeds, CHUNKS)
        each = runs.seconds / CHUNKS / seeds / len(settings["steps"])
        yield {"kind": "time", "method": method, "M": M, "turn": turn, SECONDS: each}


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    blocks = settings["blocks"]
    rt = bx.minibatch(bx.rt_mlmc(settings["K"]), blocks, mode="loop")
    made = {"RT-MLMC": rt, "BSVRB": bx.bsvrb(2, blocks=blocks)}
    used = ("blocks", "K", "T", "rounds", "rows", "steps")
    of = {**{name: settings[name] for name in used}, "chunks": CHUNKS, "problem": [LAM, NOISE, D]}
    for M in settings["M"]:
        for method, estimator in made.items():
            work = partial(rows_of, method, estimator, M, settings, seeds)
            yield Cell(f"{method}, M = {M}", work, {**of, "method": method, "M": M})
    for setting, told in settings["trackers"].items():  # BSVRB's other settings, where tables are small
        other = {**settings, "steps": settings["steps"][: settings["few"]]}
        estimator = bx.bsvrb(2, blocks=blocks, **told)
        for M in settings["M_trackers"]:
            work = partial(rows_of, "BSVRB", estimator, M, other, seeds, setting)
            named = {**of, "steps": other["steps"], "method": "BSVRB", "M": M, "setting": setting, **told}
            yield Cell(f"BSVRB, {setting}, M = {M}", work, named)
    timing = {**of, "M": settings["M"], "turns": settings["turns"]}
    yield Cell("seconds of a step", partial(timed, made, settings, seeds), timing)


def needed(records: Records, method: str, eps: float, tuned: bool = False) -> tuple[Totals, list[Any]]:
    """What a method needs until |grad F| stays below eps at each M, and with which step sizes of the grid.

    BSVRB has the best for each M, by the upper end of its steps' interval; RT-MLMC one for all, by its worst M.
    ``tuned``: of all settings of the trackers too, at the M where they were tried.
    """
    s, options = records.settings, [(None, step) for step in records.settings["steps"]]
    if tuned:
        options += [(setting, step) for setting in s["trackers"] for step in s["steps"][: s["few"]]]
    Ms = s["M_trackers"] if tuned else s["M"]

    def rows(M: int, option: tuple[str | None, float]) -> list[Row]:
        # the least of the turns: what else a machine does can only add
        beside = {"eps": eps, SECONDS: float(min(records.values(SECONDS, kind="time", method=method, M=M)))}
        length = lambda row: {"every": row["T"] // (len(row["square"]) - 1), "mean_square": row["square"][1:]}
        where = {"kind": "run", "method": method, "M": M, "setting": option[0], "step": option[1]}
        return [row | beside | length(row) for row in records.where(**where)]

    tried = [[Totals(rows(M, option), "M", HELD) for option in options] for M in Ms]
    late = np.nan_to_num([[one.needed[0] for one in of_M] for of_M in tried], nan=np.inf)
    best = np.full(len(Ms), late.max(0).argmin())
    if method == "BSVRB":
        sure = [[one.steps()[0].high for one in of_M] for of_M in tried]
        best = np.where(np.isfinite(sure).any(1), np.argmin(sure, 1), late.argmin(1))
    chosen = [options[j] for j in best]
    found = Totals([row for M, option in zip(Ms, chosen, strict=True) for row in rows(M, option)], "M", HELD)
    return found, chosen if tuned else [step for _, step in chosen]


def amounts(found: Totals, name: str | None) -> list[Interval]:
    """Of something counted per step (of steps where nothing is named), for each M; the whole run where it missed."""
    steps = [T if i in found.there else Interval(*[found.length(i)] * 3) for i, T in enumerate(found.steps())]
    each = found.per_step[name] if name else [1.0] * len(steps)
    return [Interval(*(n * part for part in T)) for n, T in zip(each, steps, strict=True)]


def render(records: Records) -> Drawn:
    eps = records.settings["eps"]
    found = {method: needed(records, method, eps)[0] for method in METHODS}
    tuned = needed(records, "BSVRB", eps, tuned=True)[0]
    figure, axes = figures.panels(2)
    for panel, column, label in zip(axes, ("eta", SECONDS), ("samples of eta", "seconds"), strict=True):
        for method in METHODS:
            draw(panel, found[method], column, method)
        draw(panel, tuned, column, "BSVRB", ", trackers tuned", "dashed")
        panel.set(**figures.LOG_LOG, xlabel="number of tasks M", ylabel=label, title=f"{label} to the target")
        figures.legend(panel, loc="best")
    return Drawn(figure, [table(records, eps)])


def draw(panel: Any, found: Totals, column: str, method: str, more: str = "", style: str = "solid") -> None:
    """Reached targets joined by a line, lower bounds as open triangles."""
    needs = dict(zip(found.sizes, amounts(found, column), strict=True))
    if there := [M for M in needs if M not in found.missed]:
        figures.points(panel, there, [needs[M] for M in there], method, f"{method}{more}", linestyle=style)
    if found.missed:
        look = {"linestyle": "none", "marker": "^", "markerfacecolor": "none", "color": figures.colour(method)}
        panel.plot(found.missed, [needs[M].value for M in found.missed], label=f"{method}{more}, more than", **look)


def table(records: Records, eps: float) -> Table:
    """Steps, calls and seconds for one target."""
    rows = []
    for method in METHODS:
        found, steps = needed(records, method, eps)
        columns = zip(*(amounts(found, column) for column in (None, *COUNTS, SECONDS)), strict=True)
        for M, step, cells in zip(found.sizes, steps, columns, strict=True):
            more = "more than " if M in found.missed else ""
            rows.append((method, f"{M:,}", f"{step:g}", *(f"{more}{three_digits(cell.value)}" for cell in cells)))
    names = ("method", "M", "step", "steps", "samples of eta", "gradients of g", "seconds")
    return Table(f"To |grad F| = {eps:g}", names, rows)


def flat(records: Records) -> Found:
    eps, Ms = records.settings["eps"], records.settings["M"]
    (rt, steps), (easy, _) = (needed(records, "RT-MLMC", target) for target in (eps, 2 * eps))
    eta = "exponent of M, samples of eta to |grad F| = "
    beside: Any = {f"{eta}{2 * eps:g}": easy.exponent("eta"), "exponent of M, seconds": rt.exponent(SECONDS)}
    beside |= {"M at which it was reached": f"{len(rt.there)} of {len(Ms)}"}
    words = {"few": Ms[0], "many": f"{Ms[-1]:,}", "step": steps[0], "missed": rt.missed}
    return Found({f"{eta}{eps:g}": rt.exponent("eta")}, beside, words)


def grows(records: Records) -> Found:
    s = records.settings
    (rt, _), (other, _) = (needed(records, method, s["eps"]) for method in METHODS)
    best, options = needed(records, "BSVRB", s["eps"], tuned=True)
    grown, slower, Ms = other.exponent("eta"), other.exponent(SECONDS), other.sizes
    missed = [i for i, M in enumerate(Ms) if M in other.missed]
    words: Any = {"n": len(best.there), "dearer": slower.value > grown.value, "most": f"{max(best.sizes):,}"}
    visits = lambda i: f"{other.length(i) * s['blocks'] / Ms[i]:.2g} visits of a task"
    words["missed"] = [f"{Ms[i]:,} in {other.length(i):,} steps ({visits(i)})" for i in missed]
    named = zip(best.sizes, options, strict=True)
    words["chosen"] = "; ".join(f"{setting or 'its own'}, {step:g} (M = {M:,})" for M, (setting, step) in named)
    for name, column in (("samples", "eta"), ("time", SECONDS)):
        words[name] = crossing(Ms, amounts(rt, column), amounts(other, column))
    lines = {"exponent of M, samples of eta, trackers tuned": best.exponent("eta")}
    beside = {"exponent of M, samples of eta, its own trackers": grown, "exponent of M, seconds": slower}
    return Found(lines, beside, words)


def crossing(Ms: Sequence[int], ours: list[Interval], theirs: list[Interval]) -> str:
    """From which M on RT-MLMC needs less: intervals apart there and at every larger M."""
    not_yet = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not a.high < b.low]
    first = not_yet[-1] + 1 if not_yet else 0
    return f"from M = {Ms[first]:,} on" if first < len(Ms) else "at no M"


REACHED, OFTEN = Rule(lambda found: not found.words["missed"]), Rule(lambda found: found.words["n"] > 2)
CLAIMS = claims_of(CONFIG, {flat: REACHED, grows: OFTEN})
