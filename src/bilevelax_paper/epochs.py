"""The lemma on EpochSGD: how fast E|y_{K+1} - y*|^2 falls, for several step sizes.

Multiplying g by mu multiplies its curvature and its gradients by mu and leaves y* where it is; EpochSGD on mu g with
beta0 takes the steps of EpochSGD on g with mu beta0. So a run on c g with beta0 = 1, g of curvature 1, stands for
every pair with mu beta0 = c, and L^2/mu^2, the scale of the lemma's bound, is the same for all of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.experiments import _table1_problems as problems
from bilevelax.experiments._items import Cell, Claim, Records, Row, Table
from bilevelax.experiments._statistics import Interval, bootstrap, mean, number
from bilevelax.experiments._trajectories import seed_keys
from bilevelax.lower import epoch_sgd
from bilevelax.problem import Key, Problem, X

PART = "iterates"
ROLE = 7  # of the seeds' keys: other draws than those of the levels
PRINTED, OURS = 0.25, 1.0  # mu beta0
STANDARD = 0.4  # beta0 "such as 0.4"
CURVATURES = (2.0, 1.0, 0.25)  # mu beside it
LEAST = 0.74  # mu beta0 from which on an epoch contracts |y - y*|^2 by a half


def step_sizes() -> list[float]:
    """Every mu beta0 that a claim needs."""
    return sorted({PRINTED, OURS, *(mu * STANDARD for mu in CURVATURES)}, reverse=True)


def multiplied() -> Problem:
    """The quadratic of table 1 with c g for g; c is its data, so that one program serves every c."""
    known = problems.known_quadratic().problem
    return Problem(
        f=known.f,
        g=lambda x, y, eta, context: context[1].astype(y.dtype) * known.g(x, y, eta, context[0]),
        sample_context=lambda key, c: (known.context(key), c),
        sample_conditional=lambda key, context, c: known.conditional(key, context[0]),
        init_y=lambda x, context: known.start(x, context[0]),
        data=jnp.ones((), float),
    )


@partial(jax.jit, static_argnames=("levels", "n"))
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

    means = lambda key: jax.tree.map(
        lambda a: a.mean(0), jax.vmap(lambda i: one(random.fold_in(key, i)))(jnp.arange(n))
    )
    return lax.map(means, keys)


def rows_of(c: float, problem: Problem, levels: int, n: int, seeds: int) -> list[Row]:
    """One row for each seed; entry k - 1 of a list belongs to y_k^0. Gradients are those of g, not of c g."""
    found = problems.matrices()
    to_y_star = tuple(jnp.asarray(np.linalg.solve(found.A, a), float) for a in (found.B, found.C))
    at_c = dataclasses.replace(problem, data=jnp.asarray(c, float))
    x = jnp.asarray(problems.start(found), float)
    square, slope = errors(seed_keys(seeds, ROLE), at_c, x, to_y_star, levels=levels, n=n)
    listed = lambda a: [float(f"{v:.5g}") for v in np.asarray(a)]
    return [
        {"part": PART, "c": c, "seed": seed, "error": listed(square[seed]), "grad_square": listed(slope[seed] / c**2)}
        for seed in range(seeds)
    ]


def cells(settings: dict[str, Any], seeds: int) -> Iterator[Cell]:
    sizes, problem = {name: settings[name] for name in ("levels", "n")}, multiplied()
    for c in step_sizes():
        work = partial(rows_of, c, problem, **sizes, seeds=seeds)
        yield Cell(f"iterates, mu beta0 = {c:g}", work, {"part": PART, "c": c, "role": ROLE, **sizes})


def curves(records: Records, c: float) -> np.ndarray:
    """|y_{K+1}^0 - y*|^2 for K = 0, 1, ...: (seeds, K)."""
    return np.asarray(records.values("error", part=PART, c=c))


def bound(records: Records, c: float) -> np.ndarray:
    """2 L^2 mu^-2 2^-(K+1) for K = 0, 1, ...; L^2 is the largest E|grad_2 g|^2 at the start of an epoch, mu = 1."""
    largest = np.asarray(records.values("grad_square", part=PART, c=c)).mean(0).max()
    return 2 * largest * 2.0 ** -(np.arange(records.settings["levels"] + 1) + 1)


def per_level(records: Records, c: float) -> Interval:
    """log2 of what an epoch does to the error, over the last levels."""
    last = curves(records, c)[:, -min(6, records.settings["levels"]) :]
    return bootstrap(lambda v: float(np.polyfit(range(v.shape[1]), np.log2(v.mean(0)), 1)[0]), last)


def over_bound(records: Records, c: float) -> list[Interval]:
    """Error over bound for K = 1, 2, ..."""
    ratios = curves(records, c) / bound(records, c)
    return [mean(ratios[:, K]) for K in range(1, ratios.shape[1])]


def table(records: Records) -> Table:
    """Errors, and in brackets times the lemma's bound, for every step size."""
    columns = [(f"mu beta0 = {c:g}", curves(records, c).mean(0), bound(records, c)) for c in step_sizes()]
    cells = lambda K: [f"{number(error[K])} ({number(error[K] / most[K])})" for _, error, most in columns]
    rows = [(str(K), *cells(K)) for K in range(1, records.settings["levels"] + 1)]
    title = "EpochSGD: E|y_{K+1} - y*|^2 (times the bound of the lemma); the paper prints mu beta0 = 1/4"
    return Table(title, ("K", *(name for name, _, _ in columns)), rows)


def claims(records: Records) -> list[Claim]:
    return [lemma(records), any_beta0(records)]


def lemma(records: Records) -> Claim:
    printed, ours = over_bound(records, PRINTED), over_bound(records, OURS)
    K, broken = len(printed), [K for K, ratio in enumerate(printed, 1) if ratio.low > 1]
    rate = per_level(records, PRINTED)
    largest = max(ratio.high for ratio in ours)
    return Claim(
        "EpochSGD with beta0 = 1/(4 mu): E|y_{K+1} - y*|^2 is at most 2 L^2 mu^-2 2^-(K+1)",
        "at most 1 times the bound; 2^(-K)",
        f"{printed[-1]} times the bound at K = {K}; falls like 2^({rate} K)",
        records.settings["seeds"],
        Claim.judge(not broken and rate.high <= -0.95, not broken),
        (f"Broken from K = {broken[0]} on. " if broken else f"Kept up to K = {K}. ")
        + "L^2 is the largest mean square of grad_2 g at the start of an epoch. The induction takes the division by "
        "mu beta0 = 1/4 for one by 4. "
        + (
            f"With beta0 = 1/mu the error is at most {number(largest)} times the bound and falls like "
            f"2^({per_level(records, OURS)} K)."
        ),
    )


def any_beta0(records: Records) -> Claim:
    rates = {mu: per_level(records, mu * STANDARD) for mu in CURVATURES}
    holds = [mu for mu, rate in rates.items() if rate.value <= -0.9]
    fails = [mu for mu in CURVATURES if mu not in holds]
    listed = lambda mus: ", ".join(f"{mu:g}" for mu in mus)
    return Claim(
        "Any constant beta0 > 0, such as 0.4, gives equivalent results",
        "2^(-K), whatever mu is",
        "; ".join(f"mu = {mu:g}: 2^({rate} K)" for mu, rate in rates.items()),
        records.settings["seeds"],
        Claim.judge(not fails, bool(holds)),
        f"E|y_(K+1) - y*|^2 with beta0 = {STANDARD:g}. "
        + (f"It holds at mu = {listed(holds)}. " if holds else "")
        + (f"It fails at mu = {listed(fails)}: " if fails else "")
        + "an epoch multiplies the error in the flattest direction by ((1 - e^-c)/c)^2, c = mu beta0, which is at "
        f"most 1/2 only for c >= {LEAST}: with {STANDARD:g} for mu >= {LEAST / STANDARD:.2f}. Meta-learning has mu = "
        "lambda = 2.",
    )
