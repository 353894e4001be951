"""Prices for customers with budgets, against closed forms and KKT systems in NumPy."""

from itertools import chain, combinations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications import stackelberg_pricing
from bilevelax.applications.stackelberg_pricing import Customer, problem_of
from bilevelax.base.compiling import program
from bilevelax.exact.respond import every_answer

COST, S = 1.0, 0.3
Q = (1 - S) * np.eye(3) + S


def kkt(x, taste, budget):
    """(y, dy/dx) of a customer, by trying every set of active constraints."""
    rows, right = np.vstack([-np.eye(3), x]), np.array([0.0, 0.0, 0.0, budget])
    for active in chain.from_iterable(combinations(range(4), k) for k in range(4)):
        J, k = rows[list(active)], len(active)
        system = np.block([[Q, J.T], [J, np.zeros((k, k))]])
        solution = np.linalg.solve(system, np.concatenate([taste - x, right[list(active)]]))
        y, lam = solution[:3], solution[3:]
        if (rows @ y <= right + 1e-9).all() and (lam >= -1e-9).all():
            paying = lam[-1] if 3 in active else 0.0
            moved = np.vstack([-(1 + paying) * np.eye(3), np.zeros((k, 3))])
            if 3 in active:
                moved[-1] = -y
            return y, np.linalg.solve(system, moved)[:3], active
    raise AssertionError("no active set is right")


def test_answers_and_gradient_are_those_of_kkt_systems():
    """Also where the budget binds: its row is made of the prices."""
    rng = np.random.default_rng(3)
    people = Customer(rng.normal(2.0, 1.0, size=(12, 3)), np.geomspace(0.3, 30.0, 12))
    problem, x = problem_of(people, np.zeros((12, 1, 3)), COST, S), np.array([1.4, 1.1, 1.7])
    found = [kkt(x, taste, budget) for taste, budget in zip(*people, strict=True)]
    np.testing.assert_allclose(program()(every_answer)(problem, jnp.asarray(x)), [y for y, *_ in found], atol=1e-8)
    wanted = -np.mean([y + (x - COST) @ moved for y, moved, _ in found], axis=0)
    batch = bx.minibatch(bx.saa("all"), 12, contexts="spread")
    estimate, _ = program()(lambda x: batch.estimate(random.key(0), problem, x, batch.init(problem, x)))(jnp.asarray(x))
    np.testing.assert_allclose(estimate.grad, wanted, atol=1e-8)
    sets = {active for *_, active in found}
    assert () in sets and any(3 in each for each in sets) and any(set(each) - {3} for each in sets)


def test_solve_finds_the_best_price_of_a_grid():
    """One product: a customer buys min((a - x)^+, B / x)."""
    app = stackelberg_pricing.make(products=1, n=40, shocks=1, noise=0.3, budget=3.0, fresh=4)
    taste = np.asarray(app.problem.data.contexts.taste + app.problem.data.outcomes[:, 0])[:, 0]
    budget = np.asarray(app.problem.data.contexts.budget)
    prices = np.linspace(1.0, 5.0, 40_001)[:, None]
    profit = ((prices - 1.0) * np.minimum(np.maximum(taste - prices, 0), budget / prices)).mean(1)
    solved = bx.solve(app.problem, app.x1, key=random.key(0), tol=1e-4)
    assert float(solved.x[0]) == pytest.approx(prices[profit.argmax(), 0], abs=1e-3)
    assert -solved.F.mean == pytest.approx(profit.max(), rel=1e-6)


def test_metrics_are_sums_over_fresh_customers():
    app = stackelberg_pricing.make(products=3, n=3, fresh=30, budget=4.0)
    rng = np.random.default_rng(0)
    stackelberg_pricing.customers(3, 3, 4.0, rng)
    people = stackelberg_pricing.customers(3, 30, 4.0, rng)
    x = np.array([2.0, 2.5, 3.0])
    y = np.array([kkt(x, taste, budget)[0] for taste, budget in zip(*people, strict=True)])
    found = app.metrics(jnp.asarray(x))
    assert found["revenue"] == pytest.approx((y @ x).mean())
    assert found["profit"] == pytest.approx((y @ (x - COST)).mean())
    assert found["at_budget"] == pytest.approx(np.mean(y @ x > people.budget - 1e-6)) and found["at_budget"] > 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(substitution=1.0), "`substitution` of stackelberg_pricing must lie between 0 and 1. Got 1.0"),
        (dict(budget=0.0), "`budget` of stackelberg_pricing must be a positive number. Got 0.0"),
        (dict(products=0), "`products` of stackelberg_pricing must be an integer >= 1. Got 0"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        stackelberg_pricing.make(**change)
