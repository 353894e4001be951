"""Prices of several products for customers who choose what to buy within a budget.

.. math::
    \\max_x E \\, (x - c)^T y^*(x; \\xi), \\quad
    y^*(x; \\xi) = \\arg\\max_{y \\ge 0, \\; x^T y \\le B(\\xi)} E_{\\eta|\\xi} (a(\\xi) + \\eta - x)^T y
    - \\tfrac12 y^T Q y

x holds the prices, xi a customer's tastes a and budget B, eta what the tastes do until the purchase. Products are
substitutes: Q has ones on its diagonal and s > 0 beside it. Prices are in the budget's row, so the leader moves the
set that followers choose from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.applications import Application
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.problem import Problem, X
from bilevelax.exact.constraints.polyhedron import polyhedron
from bilevelax.exact.respond import every_answer
from bilevelax.problems.stored import from_arrays

CENTRE = 4.0  # of tastes: what the first unit of a product is worth


class Customer(NamedTuple):
    """xi: what the first unit of each product is worth, and what can be spent in all."""

    taste: Any
    budget: Any


def customers(products: int, n: int, budget: float, rng: np.random.Generator) -> Customer:
    """n of them: tastes that vary by product and customer, budgets log-normal around ``budget``."""
    taste = CENTRE + 0.5 * np.linspace(-1, 1, products) + rng.normal(size=(n, products))
    return Customer(taste, budget * np.exp(0.5 * rng.normal(size=n)))


def problem_of(customers: Customer, shocks: Any, cost: float, substitution: float) -> Problem:
    """The problem on stored customers, each with m equally likely shocks (n, m, products)."""
    products = customers.taste.shape[1]

    def g(x: X, y: jax.Array, eta: jax.Array, xi: Customer) -> jax.Array:
        crossed = (1 - substitution) * jnp.sum(y**2) + substitution * jnp.sum(y) ** 2
        return crossed / 2 - (xi.taste + eta - x) @ y

    def rows(x: X, xi: Customer) -> jax.Array:
        return jnp.concatenate([-jnp.eye(products, dtype=x.dtype), x[None]])

    def right(x: X, xi: Customer) -> jax.Array:
        return jnp.concatenate([jnp.zeros(products, x.dtype), jnp.asarray(xi.budget, x.dtype)[None]])

    return from_arrays(
        f=lambda x, y, eta, xi: -(x - cost) @ y,
        g=g,
        contexts=jax.tree.map(lambda a: jnp.asarray(a, float), customers),
        outcomes=jnp.asarray(shocks, float),
        init_y=lambda x, xi: jnp.zeros(products, x.dtype),
        constraint=polyhedron(rows, right),
        mu_g=1 - substitution,
        L_g1=1 + (products - 1) * substitution,
    )


@program(static_argnames="cost")
def sold(test: Problem, x: X, cost: float) -> dict[str, jax.Array]:
    """Means over the stored customers."""
    y = every_answer(test, x)
    spent, budget = y @ x, test.data.contexts.budget
    profit = spent - cost * jnp.sum(y, axis=1)
    return {
        "profit": jnp.mean(profit),
        "revenue": jnp.mean(spent),
        "at_budget": jnp.mean(budget - spent < 1e-4 * budget, dtype=float),
    }


SMALLEST = {"products": 2, "n": 3, "shocks": 2, "fresh": 10}  # for the contract tests


def make(
    products: int = 4,
    n: int = 200,
    budget: float = 10.0,
    cost: float = 1.0,
    substitution: float = 0.3,
    noise: float = 0.5,
    shocks: int = 8,
    fresh: int = 1000,
    seed: int = 0,
) -> Application:
    """Best prices, from customers that were asked.

    Metrics, on fresh customers whose answers are exact: ``profit`` and ``revenue`` of a customer, and the share
    ``at_budget`` of customers who spend all that they can.

    Args:
        products: that the leader sells.
        n: stored customers.
        budget: median of what a customer can spend.
        cost: of making one unit.
        substitution: how much a unit of one product lowers the worth of another, in (0, 1).
        noise: standard deviation of the shocks.
        shocks: stored for each customer, equally likely.
        fresh: customers in the metrics.
        seed: of all data.
    """
    counts = {"products": products, "n": n, "shocks": shocks, "fresh": fresh}
    for name, value in counts.items():
        require_integer(name, "stackelberg_pricing", value, 1)
    for name, positive in {"budget": budget, "cost": cost, "noise": noise}.items():
        require_positive(name, "stackelberg_pricing", positive)
    if not 0 < substitution < 1:
        raise ValueError(f"`substitution` of stackelberg_pricing must lie between 0 and 1. Got {substitution!r}.")
    rng = np.random.default_rng(seed)
    asked, others = (customers(products, size, budget, rng) for size in (n, fresh))
    problem = problem_of(asked, noise * rng.normal(size=(n, shocks, products)), cost, substitution)
    test = problem_of(others, np.zeros((fresh, 1, products)), cost, substitution)

    def metrics(x: X) -> dict[str, float]:
        return {name: float(a) for name, a in sold(test, x, cost).items()}

    return Application(problem, jnp.full(products, CENTRE / 2, float), metrics)
