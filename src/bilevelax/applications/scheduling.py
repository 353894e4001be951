"""Generators scheduled for a forecast of tomorrow's load, with ramps: Donti, Amos and Kolter (2017).

.. math::
    \\min_x E \\, c(y^*(x; \\xi), \\eta), \\quad
    y^*(x; \\xi) = \\arg\\min_{|y_{i+1} - y_i| \\le r} E_{e \\sim N(m_x(\\xi), s_x^2)} c(y, e), \\quad
    c(y, e) = \\sum_i \\gamma_s (e_i - y_i)^+ + \\gamma_e (y_i - e_i)^+ + \\tfrac12 (y_i - e_i)^2

xi is what is known the day before, eta the load that came, x a network that forecasts the 24 hours and the spread of
its errors. Under a normal forecast the follower's cost has a closed form, strongly convex, so its samples need no
draws; the leader trains the network on what the schedules cost.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.stats import norm

from bilevelax.applications import Application
from bilevelax.applications.newsvendor.policies import mlp
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core.problem import Key, Problem, X, Xi
from bilevelax.exact.constraints.polyhedron import polyhedron
from bilevelax.exact.respond import every_answer
from bilevelax.problems.stored import from_arrays

TRAIN = 0.8  # of the days, the first ones
SYNTHETIC = 400  # days at most
NARROWEST = 0.01  # spread of a forecast, in units of load


class Costs(NamedTuple):
    """Of a unit that is short, of one in excess, and the largest step between two hours."""

    short: float
    excess: float
    ramp: float

    def paid(self, y: jax.Array, load: jax.Array) -> jax.Array:
        """c(y, load), hour by hour."""
        missing = load - y
        linear = self.short * jnp.maximum(missing, 0) + self.excess * jnp.maximum(-missing, 0)
        return linear + missing**2 / 2

    def expected(self, y: jax.Array, mean: jax.Array, spread: jax.Array) -> jax.Array:
        """E c(y, e) for normal e, hour by hour."""
        u = (y - mean) / spread
        excess = (y - mean) * norm.cdf(u) + spread * norm.pdf(u)
        linear = self.short * (mean - y) + (self.short + self.excess) * excess
        return linear + ((y - mean) ** 2 + spread**2) / 2

    def steepest(self, narrowest: float) -> float:
        """The largest curvature of `expected` where no spread is below this."""
        return 1 + (self.short + self.excess) / (np.sqrt(2 * np.pi) * narrowest)


class Days(NamedTuple):
    """Features and loads of days, in the order of time."""

    X: np.ndarray
    y: np.ndarray


def synthetic(days: int, hours: int, seed: int) -> Days:
    """Loads that follow a daily wave, a weekly and a yearly one, temperatures, and errors that grow with the load."""
    rng = np.random.default_rng(seed)
    hour, day = np.arange(hours) / hours, np.arange(days + 1)
    weather = np.convolve(rng.normal(size=days + 8), np.ones(8) / np.sqrt(8), "valid")
    season = np.cos(2 * np.pi * day / 365)
    temperature = weather + 1.5 * season
    noise = 0.05 * rng.standard_t(5, size=(days + 1, hours))
    wave = 1.5 - 0.3 * np.cos(2 * np.pi * (hour - 0.1))
    load = wave + 0.15 * (temperature**2 / 4 - 0.5)[:, None] - 0.15 * (day % 7 >= 5)[:, None]
    load = load + noise * np.maximum(load, 0.2)
    known = np.column_stack([temperature[1:], temperature[1:] ** 2, season[1:], day[1:] % 7 >= 5, load[:-1]])
    return Days(known, load[1:])


def days_of(data: str, days: int, hours: int, seed: int) -> Days:
    """Those of PJM or synthetic ones; "auto" takes PJM where its files are."""
    from bilevelax.datasets.pjm import is_there, load_pjm  # problems need no files; this one can read some

    if data == "pjm" or (data == "auto" and is_there()):
        loads = load_pjm()
        return Days(loads.X[-days:], loads.y[-days:])
    return synthetic(min(days, SYNTHETIC), hours, seed)


def standardised(days: Days) -> tuple[Days, Days]:
    """(training days, test days), features scaled by the training days alone."""
    n = int(TRAIN * len(days.y))
    centre, scale = days.X[:n].mean(0), days.X[:n].std(0)
    X = (days.X - centre) / np.where(scale > 0, scale, 1)
    return Days(X[:n], days.y[:n]), Days(X[n:], days.y[n:])


def spread_of(x: X) -> jax.Array:
    return NARROWEST + jnp.exp(x["log_s"])


def log_spread(errors: np.ndarray) -> jax.Array:
    """log_s of a forecast that makes these errors (days, hours)."""
    return jnp.log(jnp.asarray(np.maximum(np.sqrt(np.mean(errors**2, axis=0)) - NARROWEST, NARROWEST), float))


def least_squares(days: Days, width: int, key: Key) -> X:
    """A network whose affine path is the least-squares forecast, and the spread of what that leaves."""
    design = np.column_stack([days.X, np.ones(len(days.y))])
    weights = np.linalg.lstsq(design, days.y, rcond=1e-6)[0]
    network = mlp(days.X.shape[1], days.y.shape[1], key, width)
    network = jax.tree.map(lambda a: jnp.asarray(a, float), network)
    affine = [jnp.asarray(a, float) for a in (weights[:-1].T, weights[-1])]
    network = eqx.tree_at(lambda n: [n.affine.weight, n.affine.bias], network, affine)
    return {"network": network, "log_s": log_spread(days.y - design @ weights)}


def problem_of(days: Days, costs: Costs) -> Problem:
    """The problem on stored days, each with the one load that came."""
    hours = days.y.shape[1]
    steps = np.eye(hours - 1, hours, 1) - np.eye(hours - 1, hours)

    def g(x: X, y: jax.Array, eta: jax.Array, xi: Xi) -> jax.Array:
        return costs.expected(y, x["network"](xi), spread_of(x)).sum()

    return from_arrays(
        f=lambda x, y, eta, xi: costs.paid(y, eta).sum(),
        g=g,
        contexts=jnp.asarray(days.X, float),
        outcomes=jnp.asarray(days.y, float)[:, None],
        init_y=lambda x, xi: x["network"](xi),
        constraint=polyhedron(np.concatenate([steps, -steps]), costs.ramp),
        mu_g=1.0,
        L_g1=costs.steepest(NARROWEST),
    )


@program(static_argnames="costs")
def judged(test: Problem, x: X, costs: Costs) -> dict[str, jax.Array]:
    """What the schedules of stored days cost, how wrong their forecasts are, and how often ramps hold them."""
    loads = test.data.outcomes[:, 0]
    y = every_answer(test, x)
    forecast = jax.vmap(x["network"])(test.data.contexts)
    held = jnp.abs(jnp.diff(y, axis=1)) > costs.ramp * (1 - 1e-4)
    return {
        "cost": jnp.mean(jnp.sum(costs.paid(y, loads), axis=1)),
        "rmse": jnp.sqrt(jnp.mean((forecast - loads) ** 2)),
        "ramps_held": jnp.mean(held, dtype=float),
    }


# for `bilevelax run`: single contexts and a series of thousands of terms are too noisy for a network of this size
RUN = {"estimator": "saa", "contexts": 16, "step": 1e-4, "T": 300}

# for the contract tests
SMALLEST = {"data": "synthetic", "days": 10, "hours": 2, "width": 1, "gamma_s": 2.0, "ramp": 0.1}


def make(
    data: str = "auto",
    days: int = 1000,
    hours: int = 24,
    width: int = 200,
    gamma_s: float = 50.0,
    gamma_e: float = 0.5,
    ramp: float = 0.4,
    seed: int = 0,
) -> Application:
    """Schedules of the last fifth of the days, from a network trained on the others; started at least squares.

    Metrics, on the test days: ``cost`` of a day's schedule, ``rmse`` of the forecast, and ``ramps_held``, the share of
    steps between hours that are as large as they may be.

    Args:
        data: ``pjm`` (see `load_pjm`), ``synthetic``, or ``auto``: the first if its files are there.
        days: at most so many, the last ones; of synthetic data so many, but not more than 400.
        hours: of a synthetic day.
        width: of the two hidden layers.
        gamma_s, gamma_e: cost of a unit short and of one in excess.
        ramp: largest step between two hours.
        seed: of the network and the synthetic days.
    """
    require_choice("data", "scheduling", data, ("auto", "pjm", "synthetic"))
    for name, value, least in (("days", days, 10), ("hours", hours, 2), ("width", width, 1)):
        require_integer(name, "scheduling", value, least)
    for name, positive in {"gamma_s": gamma_s, "gamma_e": gamma_e, "ramp": ramp}.items():
        require_positive(name, "scheduling", positive)
    costs = Costs(gamma_s, gamma_e, ramp)
    train, test = standardised(days_of(data, days, hours, seed))
    later = problem_of(test, costs)

    def metrics(x: X) -> dict[str, float]:
        return {name: float(a) for name, a in judged(later, x, costs).items()}

    return Application(problem_of(train, costs), least_squares(train, width, random.key(seed)), metrics)
