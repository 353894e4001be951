"""The lemma on EpochSGD: how fast E|y_{K+1} - y*|^2 falls, for several step sizes.

EpochSGD on mu g with beta0 takes the steps of EpochSGD on g with mu beta0, so a run on c g with beta0 = 1 stands for
every pair with mu beta0 = c.
"""

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.base.compiling import program
from bilevelax.base.statistics import Interval, bootstrap, mean
from bilevelax.core.lower import epoch_sgd
from bilevelax.core.problem import Key, Problem, X
from bilevelax.run.records.cells import rounded
from bilevelax_paper.claims import Found, Rule, where
from bilevelax_paper.item import Cell, Records, Row
from bilevelax_paper.stationarity import known_quadratic, matrices, start
from bilevelax_paper.training import seed_keys

PART = "iterates"
ROLE = 7  # of the seeds' keys: other draws than those of the levels
PRINTED, OURS = 0.25, 1.0  # mu beta0
STANDARD = 0.4  # beta0 "such as 0.4"
CURVATURES = (2.0, 1.0, 0.25)  # mu beside it
STEP_SIZES = sorted({PRINTED, OURS, *(mu * STANDARD for mu in CURVATURES)}, reverse=True)  # every mu beta0 of a claim
LEAST = 0.74  # mu beta0 from which on an epoch contracts |y - y*|^2 by a half


def multiplied() -> Problem:
    """The quadratic of table 1 with c g for g; c is its data, so that one program serves every c."""
    known = known_quadratic().problem
    return Problem(
        f=known.f,
        g=lambda x, y, eta, context: context[1].astype(y.dtype) * known.g(x, y, eta, context[0]),
        sample_context=lambda key, c: (known.context(key), c),
        sample_conditional=lambda key, context, c: known.conditional(key, context[0]),
        init_y=lambda x, context: known.start(x, context[0]),
        data=jnp.ones((), float),
    )


@program(static_argnames=("levels", "n"))
def errors(
    keys: Key, problem: Problem, x: X, to_y_star: tuple[jax.Array, jax.Array], *, levels: int, n: int
) -> tuple[jax.Array, jax.Array]:
    """(|y_k^0 - y*|^2, |grad_2 g|^2 there) for k = 1..levels + 1 of EpochSGD with beta0 = 1: means over n contexts."""
    lower = epoch_sgd(1.0, cap=math.inf, block=2)

    def one(key: Key) -> tuple[jax.Array, jax.Array]:
        key_xi, key_y, key_eta = random.split(key, 3)
        xi = problem.context(key_xi)
        best = to_y_star[0] @ x + to_y_star[1] @ xi[0]

        def look(state: Any, k: Any) -> tuple[jax.Array, jax.Array]:
            y = lower.value(state)
            slope = problem.grad_g(x, y, problem.conditional(random.fold_in(key_eta, k), xi), xi)
            return jnp.sum((y - best) ** 2), jnp.sum(slope**2)

        def epoch(state: Any, k: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            new, _ = lower.epoch(key_y, problem, x, xi, state, k)
            return new, look(new, k)

        first = lower.init(problem, x, xi)
        _, seen = lax.scan(epoch, first, jnp.arange(1, levels + 1))
        return jax.tree.map(lambda a, rest: jnp.append(a, rest), look(first, 0), seen)

    many = lambda key: jax.vmap(lambda i: one(random.fold_in(key, i)))(jnp.arange(n))
    return lax.map(lambda key: jax.tree.map(lambda a: a.mean(0), many(key)), keys)


def cells(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    """One for each step size. Rows have entry k - 1 of a list for y_k^0; gradients are those of g, not of c g."""
    sizes, problem, found = {name: settings[name] for name in ("levels", "n")}, multiplied(), matrices()
    to_y_star = tuple(jnp.asarray(np.linalg.solve(found.A, a), float) for a in (found.B, found.C))
    x = jnp.asarray(start(found), float)

    def rows(c: float) -> list[Row]:
        at_c = dataclasses.replace(problem, data=jnp.asarray(c, float))
        error, slope = map(np.asarray, errors(seed_keys(seeds, ROLE), at_c, x, to_y_star, **sizes))
        lists = zip(rounded(error), rounded(slope / c**2), strict=True)
        return [{"part": PART, "c": c, "seed": i, "error": e, "grad_square": s} for i, (e, s) in enumerate(lists)]

    for c in STEP_SIZES:
        yield Cell(f"iterates, mu beta0 = {c:g}", partial(rows, c), {"part": PART, "c": c, "role": ROLE, **sizes})


def curves(records: Records, c: float) -> np.ndarray:
    """|y_{K+1}^0 - y*|^2 for K = 0, 1, ...: (seeds, K)."""
    return np.asarray(records.values("error", part=PART, c=c))


def per_level(records: Records, c: float) -> Interval:
    """log2 of what an epoch does to the error, over the last levels."""
    last = curves(records, c)[:, -min(6, records.settings["levels"]) :]
    return bootstrap(lambda v: float(np.polyfit(range(v.shape[1]), np.log2(v.mean(0)), 1)[0]), last)


def over_bound(records: Records, c: float) -> list[Interval]:
    """Error over 2 L^2 mu^-2 2^-(K+1) for K = 1, 2, ...; L^2: the largest E|grad_2 g|^2 at the start of an epoch."""
    largest = np.asarray(records.values("grad_square", part=PART, c=c)).mean(0).max()
    K = np.arange(1, records.settings["levels"] + 1)
    return [mean(ratio) for ratio in (curves(records, c)[:, 1:] / (2 * largest * 2.0 ** -(K + 1))).T]


def lemma(records: Records) -> Found:
    printed, ours = over_bound(records, PRINTED), over_bound(records, OURS)
    broken = [K for K, ratio in enumerate(printed, 1) if ratio.low > 1]
    lines = {f"times the bound at K = {len(printed)}": printed[-1], RATE: per_level(records, PRINTED)}
    words = {"kept": not broken and len(printed), "broken": broken[:1], "rate": per_level(records, OURS)}
    return Found(lines, words={**words, "largest": max(ratio.high for ratio in ours)})


def standard(records: Records) -> Found:
    words = {"beta0": STANDARD, "least": LEAST, "flattest": LEAST / STANDARD}
    return Found({f"{RATE}, mu = {mu:g}": per_level(records, mu * STANDARD) for mu in CURVATURES}, words=words)


RATE = "log2 of the error, per level"
KEPT = Rule(lambda f: bool(f.words["kept"]) and f.effects[1].high <= -0.95)
RULES = {lemma: KEPT, standard: where(lambda rate: rate.value <= -0.9)}
