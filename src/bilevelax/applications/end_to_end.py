"""End-to-end learning: a demand forecast trained on what the orders made from it cost.

.. math::
    \\min_x E \\, c(y^*(x; \\xi), \\eta), \\quad
    y^*(x; \\xi) = \\arg\\min_y E_{e \\sim p_x(\\cdot|\\xi)} c(y, e) + \\tfrac{\\rho}{2} |y - m_x(\\xi)|^2

x holds a linear-normal forecast p_x = N(m_x(xi), s_x^2) of the demand of several products; the
follower orders as if it were true; the leader pays for the demand that comes. DemandData is neither
linear nor normal nor of constant spread, so the forecast that is most likely is not the one that
orders best: that is the two-step baseline.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import ndtri

from bilevelax.applications import Application
from bilevelax.applications.newsvendor.loss import SMOOTHING, loss, require_costs, smooth_loss
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.sample_average import newton_cg
from bilevelax.problems.stored import from_arrays


class DayOutcome(NamedTuple):
    """eta: a scenario of the forecast, for the follower, and the demand that came, for the leader."""

    z: jax.Array  # standard normal quantile, the same for all products: c adds up over products
    demand: jax.Array


def forecast(x: X, xi: Xi) -> tuple[jax.Array, jax.Array]:
    """(m_x(xi), s_x), one of each for every product."""
    return x["W"] @ xi + x["c"], jnp.exp(x["log_s"])


def quantile(j: Any, scenarios: int) -> jax.Array:
    """Scenario j of equally many standard normal quantiles."""
    return ndtri((jnp.asarray(j, float) + 0.5) / scenarios)


class DemandData(NamedTuple):
    """The truth: curved in xi, with a spread that depends on xi and a long upper tail."""

    slope: np.ndarray  # (products, d)
    bend: np.ndarray
    spread: np.ndarray

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """(contexts (n, d), demands (n, products))."""
        xi = rng.normal(size=(n, self.slope.shape[1]))
        shock = rng.exponential(size=(n, len(self.slope))) - 1  # mean 0, variance 1
        return xi, self.mean(xi) + self.scale(xi) * shock

    def mean(self, xi: np.ndarray) -> np.ndarray:
        return 10 + 2 * (xi @ self.slope.T) + 1.5 * np.abs(xi @ self.bend.T)

    def scale(self, xi: np.ndarray) -> np.ndarray:
        return np.exp(0.7 * (xi @ self.spread.T))

    def best_order(self, xi: np.ndarray, ratio: float) -> np.ndarray:
        """The quantile b / (h + b) of demand given xi."""
        return self.mean(xi) + self.scale(xi) * (-np.log1p(-ratio) - 1)


def truth(products: int, d: int, rng: np.random.Generator) -> DemandData:
    return DemandData(*(rng.normal(size=(products, d)) / np.sqrt(d) for _ in range(3)))


def maximum_likelihood(contexts: np.ndarray, demands: np.ndarray) -> X:
    """The two-step forecast: least squares, and the standard deviation of what it leaves."""
    design = np.column_stack([contexts, np.ones(len(contexts))])
    weights = np.linalg.lstsq(design, demands, rcond=None)[0]
    spread = np.sqrt(np.mean((demands - design @ weights) ** 2, axis=0))
    x = {"W": weights[:-1].T, "c": weights[-1], "log_s": np.log(spread)}
    return jax.tree.map(lambda a: jnp.asarray(a, float), x)


def problem_of(contexts: Any, demands: Any, *, h: float, b: float, beta: float, rho: float, scenarios: int) -> Problem:
    """The problem on stored contexts (n, d), each with the one demand (n, products) that came."""

    def g(x: X, y: Y, eta: DayOutcome, xi: Xi) -> jax.Array:
        mean, spread = forecast(x, xi)
        return smooth_loss(y, mean + spread * eta.z, h, b, beta).sum() + rho / 2 * ((y - mean) ** 2).sum()

    base = from_arrays(
        f=lambda x, y, eta, xi: smooth_loss(y, eta.demand, h, b, beta).sum(),
        g=g,
        contexts=jnp.asarray(contexts, float),
        outcomes=jnp.asarray(demands, float)[:, None],
        init_y=lambda x, xi: forecast(x, xi)[0],
        mu_g=rho,
        L_g1=rho + (h + b) * beta / 4,
    )

    def sample_conditional(key: Key, xi: Xi, data: Any) -> DayOutcome:
        key_z, key_demand = random.split(key)
        z = quantile(random.randint(key_z, (), 0, scenarios), scenarios)
        return DayOutcome(z, base.sample_conditional(key_demand, xi, data))

    def support(xi: Xi, data: Any) -> tuple[DayOutcome, jax.Array]:
        demand = data.outcomes[xi.row, 0]
        etas = DayOutcome(
            quantile(jnp.arange(scenarios), scenarios), jnp.broadcast_to(demand, (scenarios, *demand.shape))
        )
        return etas, jnp.full(scenarios, 1 / scenarios, float)

    return dataclasses.replace(base, sample_conditional=sample_conditional, support=support)


def orders(problem: Problem, x: X) -> jax.Array:
    """y*(x; xi) of every stored context, solved tightly on all scenarios."""
    weighted = problem.weighted()

    def one(i: jax.Array) -> jax.Array:
        xi = problem.nth_context(i)
        return newton_cg(weighted, x, xi, problem.outcomes(xi), problem.start(x, xi)).y

    return jax.vmap(one)(jnp.arange(problem.n_contexts or 0, dtype=jnp.int32))


# for the contract tests
SMALLEST = {"products": 1, "d": 1, "n": 3, "scenarios": 2, "test_points": 10, "b": 1.0, "rho": 5.0}


def make(
    products: int = 3,
    d: int = 5,
    n: int = 2000,
    h: float = 1.0,
    b: float = 9.0,
    rho: float = 1.0,
    beta: float = SMOOTHING,
    scenarios: int = 32,
    test_points: int = 5000,
    seed: int = 0,
) -> Application:
    """Orders from a misspecified forecast, started at the forecast of maximum likelihood.

    Metrics, with the unsmoothed loss on fresh pairs (xi, eta), summed over products: ``true_cost``
    of the orders made from x, ``two_step_cost`` of those made from the most likely forecast, and
    ``oracle_cost`` of who knows the law of demand.

    Args:
        products, d: number of products, dimension of the context.
        n: stored contexts, each with the one demand that came.
        h, b: holding and backlog cost per unit.
        rho: pull of an order towards the forecast's mean; makes the lower level strongly convex.
        beta: smoothing of the loss.
        scenarios: equally likely quantiles that stand for the normal forecast.
        test_points: fresh pairs in the metrics.
        seed: of the truth and the data.
    """
    counts = {"products": products, "d": d, "scenarios": scenarios, "test_points": test_points}
    for name, value in counts.items():
        require_integer(name, "end_to_end", value, 1)
    require_integer("n", "end_to_end", n, d + 2)
    require_positive("rho", "end_to_end", rho)
    require_costs("end_to_end", h, b, beta)
    rng = np.random.default_rng(seed)
    demand = truth(products, d, rng)
    contexts, demands = demand.draw(rng, n)
    settings: dict[str, Any] = dict(h=h, b=b, beta=beta, rho=rho, scenarios=scenarios)
    problem = problem_of(contexts, demands, **settings)
    x1 = maximum_likelihood(contexts, demands)

    fresh_contexts, fresh_demands = demand.draw(rng, test_points)
    test = problem_of(fresh_contexts, fresh_demands, **settings)

    @program()
    def true_cost(test: Problem, x: X) -> jax.Array:
        return loss(orders(test, x), test.data.outcomes[:, 0], h, b).sum(-1).mean()

    best = demand.best_order(fresh_contexts, b / (h + b))
    oracle = float(loss(jnp.asarray(best), jnp.asarray(fresh_demands), h, b).sum(-1).mean())
    two_step = float(true_cost(test, x1))

    def metrics(x: X) -> dict[str, float]:
        return {"true_cost": float(true_cost(test, x)), "two_step_cost": two_step, "oracle_cost": oracle}

    return Application(problem, x1, metrics)
