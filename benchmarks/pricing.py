"""Prices for customers with budgets: the gradient of followers with constraints, against two that ignore them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import publish
from jax import random

import bilevelax as bx
from bilevelax.applications.stackelberg_pricing import Customer, customers, problem_of, sold
from bilevelax.base import statistics
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Problem, X
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import differentiated, newton_solver, of_stack

STEPS, COST, SUBSTITUTION = 200, 1.0, 0.3


def without_the_face() -> Estimator:
    """The exact answers within the budget, then eq. (6) as if nothing held them: what a projection alone gives."""
    solve, linear = newton_solver(), direct_or_cg()

    def one(problem: Problem, x: X, i: jax.Array) -> X:
        xi = problem.nth_context(i)
        average = of_stack(problem, x, xi, *problem.outcomes(xi), 1)
        y = solve(average, problem.start(x, xi)).y
        return differentiated(average._replace(inside=None), y, None, linear)[0]

    def estimate(key: Any, problem: Problem, x: X, state: Any) -> tuple[bx.Estimate, Any]:
        n = problem.n_contexts or 0
        every = jax.vmap(one, (None, None, 0))(problem, x, jnp.arange(n, dtype=jnp.int32))
        return bx.Estimate(jax.tree.map(lambda a: a.mean(0), every), bx.Cost(xi=n), {}), state

    return bx.Estimator(init=lambda problem, x: (), estimate=estimate)


RULE = optax.adam(optax.cosine_decay_schedule(0.1, STEPS))


def descended(problem: Problem, estimator: Estimator, x1: X) -> X:
    """The same steps for every gradient; all customers in each, so nothing is random."""
    return bx.minimize(problem, estimator, RULE, x1, key=random.key(0), T=STEPS, every=STEPS, progress=False).x


class Markets:
    """Problems that differ in their data alone, so that programs are compiled once."""

    def __init__(self, n: int = 200, fresh: int = 1000, products: int = 4) -> None:
        self.sizes = n, fresh, products
        self.first = problem_of(*self.people(n, 0), COST, SUBSTITUTION)
        self.unbound = self.first.replace(constraint=bx.nonnegative())

    def people(self, n: int, seed: int, noise: float = 0.5) -> tuple[Customer, np.ndarray]:
        rng = np.random.default_rng(seed)
        products = self.sizes[-1]
        return customers(products, n, 10.0, rng), noise * rng.normal(size=(n, 8, products))

    def asked(self, seed: int, base: Problem) -> Problem:
        return base.replace(data=problem_of(*self.people(self.sizes[0], seed), COST, SUBSTITUTION).data)

    def judged(self, seed: int, x: X) -> dict[str, float]:
        """On fresh customers, who know their tastes."""
        fresh = self.sizes[1]
        data = problem_of(*self.people(fresh, 10_000 + seed, 0.0), COST, SUBSTITUTION).data
        return {k: float(a) for k, a in sold(self.first.replace(data=data, n_contexts=fresh), x, COST).items()}


def ways(markets: Markets) -> dict[str, Callable[[int], X]]:
    """Name and prices of each way to set them, by market."""
    n, _, products = markets.sizes
    exact, blind, x1 = bx.minibatch(bx.saa("all"), n, contexts="spread"), without_the_face(), jnp.full(products, 2.0)
    on = lambda seed: markets.asked(seed, markets.first)
    return {
        "bx.solve": lambda seed: bx.solve(on(seed), x1, key=random.key(0), progress=False).x,
        "gradient with the constraint": lambda seed: descended(on(seed), exact, x1),
        "gradient that ignores it": lambda seed: descended(on(seed), blind, x1),
        "plan without budgets": lambda seed: descended(markets.asked(seed, markets.unbound), exact, x1),
        "prices at the start": lambda seed: x1,
    }


def run(quick: bool = False) -> None:
    markets, seeds = Markets(), range(2 if quick else 10)
    rows, profits = [], {}
    for name, prices in ways(markets).items():
        seen = [markets.judged(seed, prices(seed)) for seed in seeds]
        profits[name] = [each["profit"] for each in seen]
        row = {"prices by": name, **{key: str(statistics.mean([each[key] for each in seen])) for key in seen[0]}}
        lost = [100 * (1 - a / b) for a, b in zip(profits[name], profits["bx.solve"], strict=True)]
        rows.append(row | {"profit lost, %": str(statistics.mean(lost))})
    n, fresh, products = markets.sizes
    notes = [f"{len(seeds)} markets of {n} customers and {products} products; {fresh} fresh customers; 95 % intervals."]
    publish("pricing", "Prices for customers with budgets", rows, notes)
