"""Three claims of the paper beside its tables and figures: Lemma 1's bound, shared draws, and the adversary of WDRO-SI.

Lemma 1 on the quadratic whose F, bias and variance are known. Shared draws: RT-MLMC as it is, and with eta', eta'' and
the series drawn anew in each of its three terms. The adversary: at a rule of ERM, trained to the end, how far it moves
a context of the newsvendor, and what that costs, by the scale of contexts, the costs and the width of the network.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import publish
from jax import lax, random

import bilevelax as bx
from bilevelax.applications import wdro_si
from bilevelax.base.compiling import program
from bilevelax.base.statistics import bootstrap, mean
from bilevelax.estimators.rt_mlmc import level_probabilities
from bilevelax_paper.stationarity import known_quadratic, matrices, start
from bilevelax_paper.training import seed_keys, trajectories

N = 12  # terms of the series
COMMAND = "`python benchmarks/run.py claims`."


def run(quick: bool = False) -> None:
    lemma_1(quick)
    shared_draws(quick)
    adversary(quick)


def lemma_1(quick: bool) -> None:
    """E|grad F|^2 of a uniform iterate, over the bound with the variance that was measured where the runs begin."""
    K, seeds, T, known, found = 4, 8 if quick else 32, 200 if quick else 2000, known_quadratic(), matrices()
    estimator, first = bx.rt_mlmc(K, inverse=bx.neumann(N)), np.asarray(start(found))
    keys = random.split(random.key(1), 2_000 if quick else 20_000)
    noise = jax.jit(
        lambda keys: lax.map(lambda key: estimator.estimate(key, known.problem, known.x1, ())[0].grad, keys)
    )
    draws, away = np.asarray(noise(keys)) - found.grad_F(first), first - found.x_star
    bias, square = float(np.linalg.norm(draws.mean(0))), float(np.sum(draws**2, axis=1).mean())
    A, S = away @ found.hessian_F @ away / 2, np.linalg.eigvalsh(found.hessian_F)[-1]
    L = float(known.square(known.x1)["square"]) ** 0.5
    rows = []
    for part in (0.5, 0.1, 0.02):
        alpha = part / S
        run = trajectories(
            known.problem,
            estimator,
            optax.sgd,
            known.x1,
            seed_keys(seeds),
            T=T,
            every=T,
            every_step=known.square,
            scales=[alpha] * seeds,
            together=False,
        )
        bound = 2 * A / (alpha * T) + 2 * (L * bias + S * alpha * square)
        over = mean(run.means["square"][:, -1] / bound)
        rows.append({"alpha S": part, "T": T, "seeds": seeds, "bound": float(bound), "measured / bound": str(over)})
    publish(
        "claims_lemma_1",
        "Lemma 1 of the paper: the error of SGD against its bound",
        rows,
        [
            f"RT-MLMC, K = {K}, on the quadratic of Table 1; bias and variance are those at x_1.",
            COMMAND,
        ],
    )


@program(static_argnames=("n", "levels"))
def moments(key: Any, problem: bx.Problem, x: Any, n: int, levels: int) -> Any:
    """E|v^1|^2, and E|change|^2, E v^1 change at every level, both with shared draws and with own ones."""
    lower, inverse = bx.epoch_sgd(1.0, cap=math.inf), bx.neumann(N)

    def one(key: Any, k: Any) -> Any:
        key_xi, key_y, *keys = random.split(key, 5)
        xi = problem.context(key_xi)
        y = lower(key_y, problem, x, xi, k)
        v = lambda key, y: bx.hypergradient(key, problem, x, y, xi, inverse)[0]
        first = v(keys[0], y.first)
        shared = v(keys[0], y.last) - v(keys[0], y.prev)
        own = v(keys[1], y.last) - v(keys[2], y.prev)
        return {
            "first": first @ first,
            **{
                name: jnp.stack([first @ change, change @ change])
                for name, change in (("shared", shared), ("own", own))
            },
            "mean": jnp.concatenate([first, shared]),
        }

    each = lambda k: jax.vmap(lambda i: one(random.fold_in(random.fold_in(key, k), i), k))(jnp.arange(n))
    return jax.tree.map(lambda a: a.mean(1), lax.map(each, jnp.arange(1, levels + 1)))


def shared_draws(quick: bool) -> None:
    """Variance of RT-MLMC with own draws over that with shared ones, by K."""
    seeds, n, levels, known = (4, 64, 4, known_quadratic()) if quick else (16, 256, 10, known_quadratic())
    found = [moments(key, known.problem, known.x1, n=n, levels=levels) for key in random.split(random.key(0), seeds)]
    at = {name: np.stack([np.asarray(one[name]) for one in found]) for name in found[0]}
    rows = []
    for K in range(2, levels + 1, 2):
        p = level_probabilities(K)

        def variance(which: np.ndarray, name: str, K: int = K, p: Any = p) -> float:
            use = {part: values[which, :K].mean(0) for part, values in at.items()}
            half = use["mean"].shape[1] // 2
            centre = use["mean"][:, :half].mean(0) + use["mean"][:, half:].sum(0)
            return float(use["first"] @ p + 2 * use[name][:, 0].sum() + use[name][:, 1] @ (1 / p) - centre @ centre)

        ratio = bootstrap(lambda which: variance(which, "own") / variance(which, "shared"), np.arange(seeds))
        each = {
            f"{name} draws": bootstrap(partial(variance, name=name), np.arange(seeds)) for name in ("shared", "own")
        }
        rows.append({"K": K, **{name: str(value) for name, value in each.items()}, "own / shared": str(ratio)})
    publish(
        "claims_draws",
        "Variance of RT-MLMC with shared draws and with own ones",
        rows,
        [
            f"The quadratic of Table 1, {seeds} seeds of {n} draws a level, 95 % intervals.",
            COMMAND,
        ],
    )


def adversary(quick: bool) -> None:
    """Of each market a rule of ERM, and what the adversary of WDRO-SI does there."""
    sizes = (
        {"d": 5, "M": 10, "m": 10, "test_points": 10} if quick else {"d": 20, "M": 50, "m": 100, "test_points": 1000}
    )
    rows = []
    cases = [(scale, 3.0, (32, 16)) for scale in (15.0, 1.5, 0.15)] + [(1.5, 19.0, (32, 16)), (1.5, 3.0, (128, 64))]
    for scale, b, widths in cases:
        made = {**sizes, "test_points": 1000, "scale": scale, "b": b, "widths": widths, "mu_g": 1.0, "L_g1": 1.0}
        app = wdro_si.make(formulation="erm", **made)
        x = trained(app, 50 if quick else 400)
        for lam in (1.0, 100.0):
            rows.append({"scale of contexts": scale, "b / h": b, "widths": str(widths), "lambda": lam})
            rows[-1] |= moved(wdro_si.make(lam=lam, **made).problem, x)
    publish(
        "claims_adversary",
        "How far the adversary of WDRO-SI moves a context",
        rows,
        [
            "At a rule of ERM. Moved: over the context's length. Gain: what the move adds to the cost, less its price.",
            "The adversary goes uphill from the context; a larger gain elsewhere is possible.",
            COMMAND,
        ],
    )


def trained(app: Any, T: int) -> Any:
    """Adam on 64 pairs a step."""
    return bx.minimize(
        app.problem,
        bx.minibatch(bx.rt_mlmc(1), 64),
        optax.adam(optax.cosine_decay_schedule(0.01, T)),
        app.x1,
        key=random.key(0),
        T=T,
    ).x


def moved(problem: bx.Problem, x: Any) -> dict[str, Any]:
    """The adversary's answer by normalised steps uphill with ever shorter lengths; the best that was seen."""
    data = problem.data

    def one(i: Any, demands: Any) -> tuple[Any, Any, Any]:
        xi = problem.nth_context(i)
        value = lambda y: -jnp.mean(jax.vmap(lambda eta: problem.g(x, y, eta, xi))(demands))
        row, length = xi.value, jnp.linalg.norm(xi.value)

        def step(i: Any, carry: Any) -> Any:
            y, best, most = carry
            slope = jax.grad(value)(y)
            size = 0.3 * length * 0.97**i
            y = y + size * slope / jnp.maximum(jnp.linalg.norm(slope), 1e-12)
            now = value(y)
            return y, jnp.where(now > most, y, best), jnp.maximum(now, most)

        _, best, most = lax.fori_loop(0, 400, step, (row, row, value(row)))
        return jnp.linalg.norm(best - row) / length, most - value(row), value(row)

    far, gain, cost = (np.asarray(a) for a in jax.jit(jax.vmap(one))(jnp.arange(len(data.contexts)), data.outcomes))
    return {"moved": str(mean(far)), "gain": str(mean(gain)), "cost of ERM": float(cost.mean())}
