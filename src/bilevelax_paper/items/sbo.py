"""RT-MLMC and single-loop methods: on a classical bilevel problem, and on a contextual one.

Classical: the quadratic oracle with C = 0, whose follower answers all contexts alike. Contextual: y*(x, xi) = xi x and
f = |y - 1|^2 / 2 with xi ~ Exp(1), so grad F = 2 x - 1. One y shared by all contexts learns E xi x = x instead and
stops at x = 1.
"""

import dataclasses
import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications.quadratic import problem_of
from bilevelax.base.statistics import mean
from bilevelax.run.records.cells import rounded
from bilevelax_paper import figures, stationarity
from bilevelax_paper.claims import Found, claims_of, rule
from bilevelax_paper.item import Cell, Config, Drawn, Records, Row
from bilevelax_paper.stationarity import BEYOND, L_G1, Known, known_quadratic, matrices, theorem_K
from bilevelax_paper.training import seed_keys, trajectories

CONFIG = Config.read(__file__)
SINGLE_LOOP = ("ALSET", "SOBA")
METHODS = ("RT-MLMC", *SINGLE_LOOP)
N = 10
D = 2  # of the contextual problem
CHUNKS = 100


def classical() -> Known:
    """The quadratic whose follower ignores the context."""
    known, found = known_quadratic(), matrices()
    return known._replace(problem=problem_of(dataclasses.replace(found, C=0 * found.C)))


def contextual() -> Known:
    """y* = xi x; see above."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - xi * x - eta) ** 2) / 2,
        sample_context=lambda key, data: random.exponential(key, dtype=float),
        sample_conditional=lambda key, xi, data: random.normal(key, (D,), float) / 2,
        init_y=lambda x, xi: jnp.zeros_like(x),
        mu_g=1.0,
        L_g1=1.0,
    )
    return Known(problem, jnp.zeros(D, float), stationarity.square_of(lambda x: 2 * x - 1))


def makers() -> dict[str, stationarity.Maker]:
    """RT-MLMC with the theorem's K; the single-loop methods are the same for all eps."""
    series, steps = bx.neumann(N), bx.epoch_sgd(1.0, cap=float("inf"))
    decay = lambda t: (1 + t).astype(float) ** -0.5 / (2 * L_G1)
    rt = functools.cache(lambda K: (bx.rt_mlmc(K, lower=steps, inverse=series), 1))  # equal K share a program
    alset, soba = bx.single_loop("ttsa", beta=decay, inverse=series), bx.single_loop("soba", beta=decay)
    return {"RT-MLMC": lambda eps: rt(theorem_K(eps)), "ALSET": lambda eps: (alset, 1), "SOBA": lambda eps: (soba, 1)}


def contextual_rows(settings: dict[str, Any], seeds: int, method: str) -> list[Row]:
    """|grad F|^2 along runs with steps 2 / (t + 20)."""
    m = settings["contexts"]
    made = {
        "RT-MLMC": lambda: bx.minibatch(bx.rt_mlmc(settings["K"], lower=bx.epoch_sgd(2.0)), m),
        "ALSET": lambda: bx.single_loop("ttsa", batch=m),
        "SOBA": lambda: bx.single_loop("soba", batch=m),
    }
    known, every = contextual(), settings["T"] // CHUNKS
    fall = lambda scale: optax.sgd(lambda t: scale * 2 / (t + 20))
    length = {"T": every * CHUNKS, "every": every, "together": method in SINGLE_LOOP}
    runs = trajectories(known.problem, made[method](), fall, known.x1, seed_keys(seeds), **length, watch=known.square)
    same, squares = {"part": "contextual", "method": method, "t": runs.t.tolist()}, rounded(runs.values["square"])
    return [{**same, "seed": i, "square": squares[i], "x": np.asarray(runs.x)[i].tolist()} for i in range(seeds)]


def run(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    for method in METHODS:
        yield Cell(f"contextual, {method}", partial(contextual_rows, settings, seeds, method))
    yield from stationarity.cells(classical(), makers(), settings, seeds, together=SINGLE_LOOP, part="classical")


def totals(records: Records) -> dict[str, stationarity.Totals]:
    return stationarity.totals(records, METHODS, part="classical")


def render(records: Records) -> Drawn:
    return stationarity.drawn(totals(records), ("eta",), partial(draw, records))


def draw(records: Records, panel: Any) -> None:
    """Curves on the contextual problem."""
    panel.set(yscale="log", xlabel="outer steps t", ylabel=r"$|\nabla F(x_t)|^2$", title="contextual: y* = xi x")
    for method in METHODS:
        where = {"part": "contextual", "method": method}
        figures.band(panel, records.values("t", **where)[0], records.values("square", **where), method)


def complexity(records: Records) -> Found:
    found = totals(records)
    rt, alset = (found[name].calls("eta")[-1].value for name in ("RT-MLMC", "ALSET"))
    powers = {name: total.exponent("eta") for name, total in found.items()}
    ours = found["RT-MLMC"]
    lines = {BEYOND: ours.beyond(-4, None, [theorem_K(eps) for eps in ours.eps])}
    return Found({**lines, "exponent of eps, samples of eta": powers}, words={"times": f"{rt / alset:.2g}"})


def last_squares(records: Records) -> Found:
    """|grad F|^2, mean over the last quarter of each run, over seeds."""
    curves = {name: np.asarray(records.values("square", part="contextual", method=name)) for name in METHODS}
    last = {name: mean(curve[:, 3 * CHUNKS // 4 :].mean(1)) for name, curve in curves.items()}
    return Found({"|grad F|^2 at the end": last}, words={"there": f"{D}"})


NEAR = rule(lambda beyond, rt, alset, soba: abs(rt.value - alset.value) <= 0.7)
APART = rule(lambda rt, *others: min(one.low for one in others) > 0.5 * D)
CLAIMS = claims_of(CONFIG, {complexity: NEAR, last_squares: APART})
