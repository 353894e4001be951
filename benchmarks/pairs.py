"""Two published tasks with a table of pairs only, beside the way that estimates a conditional. Not a timing.

The newsvendor with side information of Yang et al. (2022), and the demand design of Hartford et al. (2017).
``python benchmarks/pairs.py newsvendor 3 4`` measures two of the ten instances and adds them to the record.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import KEPT, cell, keep, publish
from jax import random

import bilevelax as bx
from bilevelax.applications.instrumental_variables import demand_design, grid, sales
from bilevelax.base.compiling import jit_once
from bilevelax.exact.sample_average import newton_solver, of_stack
from bilevelax.problems.bases import Given, cubic_bump
from bilevelax.problems.stored import Stored
from bilevelax.sklearn import Forest, with_conditional

KEY = random.key(0)
ATOMS = 64  # rows that a forest weighs for a context
TIMES = 10  # instances of the newsvendor, trials of the demand design
HOLDING, BACKLOG, SHARP = 0.6, 1.0, 10.0  # costs, and how sharp their smooth form bends
QUANTILE = 0.3186  # of N(0, 1) at BACKLOG / (HOLDING + BACKLOG)
PULL = 0.1  # of the orders towards the leader's affine rule
ROWS, COORDINATES, TEST = 400, 10, 10_000
DESIGN, KNOTS, RHO = 1000, 16, 0.25  # rows of the demand design, bumps over time, endogeneity


def solved(problem: bx.Problem, x: Any) -> Any:
    return bx.solve(problem, x, key=KEY, progress=False).x


def answered(problem: bx.Problem, x: Any, contexts: Any) -> Any:
    """Answers of a reduced problem for new contexts."""
    return bx.answers(problem, x, bx.respond(problem, x, problem.nth_context(0), key=KEY), contexts)


# The newsvendor: demand depends on one direction of ten coordinates


def smooth_cost(y: Any, demand: Any) -> Any:
    return (HOLDING * jax.nn.softplus(SHARP * (y - demand)) + BACKLOG * jax.nn.softplus(SHARP * (demand - y))) / SHARP


def paid(orders: Any, demand: np.ndarray) -> float:
    over = np.asarray(orders, np.float64) - demand
    return float(np.mean(np.maximum(HOLDING * over, -BACKLOG * over)))


def side_information(rng: np.random.Generator, beta: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts, demands, and the mean of the demand before it is cut at zero."""
    apart = np.abs(np.subtract.outer(np.arange(len(beta)), np.arange(len(beta))))
    Z = rng.multivariate_normal(np.zeros(len(beta)), 0.5**apart, n)
    mean = 1.7 * (np.sin(2 * Z @ beta) + 2 * np.exp(-16 * (Z @ beta) ** 2) + 1)
    demand = np.full(n, -1.0)
    while (again := demand <= 0).any():
        demand[again] = mean[again] + rng.normal(size=again.sum())
    return Z, demand, mean


def affine(x: Any, xi: Any) -> Any:
    return x[0] + xi @ x[1:]


def newsvendor_of(rows: Any) -> bx.Problem:
    """The follower orders y for E cost + PULL (y - rule)^2 / 2; the leader learns the affine rule."""
    return bx.from_joint(
        f=lambda x, y, eta, xi: smooth_cost(y, eta) + 1e-3 * jnp.sum(x[1:] ** 2),
        g=lambda x, y, eta, xi: smooth_cost(y, eta) + PULL / 2 * (y - affine(x, xi)) ** 2,
        rows=rows,
        init_y=affine,
    )


def one_direction(Z: np.ndarray, demand: np.ndarray, knots: int = 8) -> Callable[[Any], Any]:
    """Bumps along the direction that least squares see: for Gaussian contexts that of any single index."""
    slope = np.linalg.lstsq(np.column_stack([np.ones(len(Z)), Z]), demand, rcond=None)[0][1:]
    low, high = np.quantile(Z @ slope, [0.02, 0.98])
    scale = (knots - 1) / (high - low)

    def bumps(z: Any) -> Any:
        at = jnp.clip((z @ jnp.asarray(slope, z.dtype) - low) * scale, 0, knots - 1)
        return jnp.append(cubic_bump(at - jnp.arange(1, knots, dtype=z.dtype)), 1.0)

    return bumps


def forest_orders(pairs: bx.Problem, x: Any, test: np.ndarray) -> Any:
    """Orders for new contexts with a forest's weights on the known rows."""
    Z, eta = (np.asarray(part, np.float64) for part in pairs.data)
    fitted = Forest(min_samples_leaf=10).fit(Z, eta[:, None], 0)
    W = fitted.weights(test).toarray()
    rows = np.argsort(-W, axis=1)[:, :ATOMS]
    weights = np.take_along_axis(W, rows, axis=1)
    weights /= weights.sum(axis=1, keepdims=True)

    def one(z: Any, etas: Any, weights: Any) -> Any:
        xi = Stored(jnp.zeros((), jnp.int32), z)
        return newton_solver()(of_stack(pairs, x, xi, etas, weights, ATOMS), pairs.start(x, xi)).y

    known = eta[np.asarray(fitted.rows_)[rows]]
    return jit_once()(jax.vmap(one))(*(jnp.asarray(a, float) for a in (test, known, weights)))


class Instance:
    """One direction, known rows and rows to be judged on, contexts scaled by the known ones."""

    def __init__(self, seed: int, test: int) -> None:
        rng = np.random.default_rng(seed)
        beta = rng.uniform(-0.1, 0.1, COORDINATES)
        self.seed = seed
        (Z, self.demand, _), (new, self.asked, self.mean) = (side_information(rng, beta, n) for n in (ROWS, test))
        centre, scale = Z.mean(axis=0), Z.std(axis=0)
        self.Z, self.new = (Z - centre) / scale, (new - centre) / scale

    def ways(self) -> dict[str, float]:
        pairs = newsvendor_of((self.Z, self.demand))
        constant = float(np.quantile(self.demand, BACKLOG / (HOLDING + BACKLOG)))
        x = jnp.zeros(1 + COORDINATES).at[0].set(constant)
        bases = {
            "reduced, bumps along one direction": one_direction(self.Z, self.demand),
            "reduced, 40 random features": bx.random_features(40, key=random.key(self.seed), bandwidth=2.0),
        }
        orders = {}
        for name, basis in bases.items():
            problem = bx.reduced(pairs, basis)
            orders[name] = answered(problem, solved(problem, x), self.new)
        weighted = with_conditional(pairs, Forest(min_samples_leaf=10), ATOMS)
        orders["forest's conditional"] = forest_orders(pairs, solved(weighted, x), self.new)
        orders["constant"] = np.full(len(self.new), constant)
        orders["who knows the mean"] = self.mean + QUANTILE
        return {way: paid(each, self.asked) for way, each in orders.items()}


# Instrumental variables: the demand design


def products(a: Any, degree: int, t: Any, s: Any) -> Any:
    """{1, ..., a^degree} x {1, s, s^2} x bumps over time, a being the price or the cost, scaled."""
    powers = lambda a, degree: a ** jnp.arange(degree + 1, dtype=float)
    bumps = cubic_bump(t / 10 * (KNOTS - 1) - jnp.arange(KNOTS, dtype=float))
    return jnp.einsum("i,j,k->ijk", powers(a, degree), powers((s - 4) / 2, 2), bumps).ravel()


def instrument(z: Any) -> Any:
    return products(z[0], 2, z[1], z[2])


def treatment(p: Any, z: Any) -> Any:
    """Sales linear in the price, for each time and emotion."""
    return products((p - 17) / 5, 1, z[1], z[2])


INSTRUMENTS = bx.Basis("products", lambda Z: Given(instrument), redundant=True)


class Trial:
    """One table of the design, with treatments made uncorrelated on it and sales in units of their deviation."""

    def __init__(self, seed: int) -> None:
        rows = demand_design(DESIGN, RHO, np.random.default_rng(seed))
        self.z, self.eta = rows.z, np.stack([rows.T[:, 0], rows.y], axis=1)  # instruments (c, t, s); price and sales
        self.size = float(self.eta[:, 1].std())
        self.raw = self.treatments(self.eta[:, 0], self.z)
        values, directions = np.linalg.eigh(self.raw.T @ self.raw / DESIGN)
        kept = values > 1e-5 * values[-1]
        self.white = directions[:, kept] / np.sqrt(values[kept])

    def treatments(self, p: np.ndarray, z: np.ndarray) -> np.ndarray:
        return np.asarray(jax.vmap(treatment)(jnp.asarray(p, float), jnp.asarray(z, float)), np.float64)

    def pairs(self) -> bx.Problem:
        """min_x E u(z)^2, where the follower's answer u(z) = E[sales - h_x(price, t, s) | z] is a conditional mean."""
        features = self.raw @ self.white
        return bx.from_joint(
            f=lambda x, u, eta, xi: u**2 / 2 + 1e-6 * jnp.sum(x**2),
            g=lambda x, u, eta, xi: (u - eta[0] + eta[1:] @ x) ** 2 / 2,
            rows=(self.z, np.column_stack([self.eta[:, 1] / self.size, features])),
            init_y=lambda x, xi: jnp.zeros(()),
        )

    def error(self, x: Any) -> float:
        """Mean squared error on the grid of prices, times and emotions."""
        asked = grid()
        found = self.treatments(asked[:, 0], asked) @ self.white @ np.asarray(x, np.float64) * self.size
        return float(np.mean((found - sales(asked)) ** 2))

    def ways(self) -> dict[str, float]:
        pairs, x = self.pairs(), jnp.zeros(self.white.shape[1])
        problems = {
            "reduced": bx.reduced(pairs, INSTRUMENTS),
            # the forest may not look at the outcomes: features of the price are among them
            "neighbours' conditional": with_conditional(pairs, "knn", ATOMS),
        }
        solve = lambda problem: bx.solve(problem, x, key=KEY, tol=1e-3, progress=False).x
        found = {way: self.error(solve(problem)) for way, problem in problems.items()}
        ignored = np.linalg.lstsq(self.raw @ self.white, self.eta[:, 1] / self.size, rcond=None)[0]
        return {**found, "instruments ignored": self.error(ignored)}


NEWSVENDOR, DEMAND = "newsvendor, cost", "demand design, squared error"
TASKS: dict[str, Callable[[int, int], dict[str, float]]] = {
    NEWSVENDOR: lambda seed, test: Instance(seed, test).ways(),
    DEMAND: lambda seed, test: Trial(seed).ways(),
}
EACH = "pairs_instances"


def measured(task: str, seed: int, test: int = TEST) -> dict[str, Any]:
    """One instance of a task, by all ways."""
    row = {"task": task, "instance": seed, **TASKS[task](seed, test)}
    print(*(f"{name}: {cell(value)}" for name, value in row.items()), sep=", ", flush=True)
    return row


def known() -> list[dict[str, Any]]:
    """Instances that were measured before."""
    path = KEPT / f"{EACH}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard error of each way over the instances of its task."""
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        ours = [row for row in rows if row["task"] == task]
        for way in list(ours[0])[2:]:
            values = [row[way] for row in ours]
            error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
            mean = float(np.mean(values))
            found.append({"task": task, "way": way, "mean": mean, "standard error": error, "instances": len(values)})
    return found


def told(rows: list[dict[str, Any]], whole: bool = True) -> None:
    """Each instance, and means over them; both are kept where they are whole."""
    rows = sorted(rows, key=lambda row: (list(TASKS).index(row["task"]), row["instance"]))
    publish(EACH, "Published tasks from a table of pairs, each instance", rows)
    publish("pairs", "Published tasks from a table of pairs", together(rows))
    for name in (EACH, "pairs") if whole else ():
        keep(name)


def add(task: str, seeds: list[int]) -> None:
    """Some instances, beside those that are known: what is to be run in parts."""
    for seed in seeds:
        others = [row for row in known() if (row["task"], row["instance"]) != (task, seed)]
        told([*others, measured(task, seed)])


def run(quick: bool = False) -> None:
    """All of them anew."""
    times, test = (1, 1000) if quick else (TIMES, TEST)
    told([measured(task, seed, test) for task in TASKS for seed in range(times)], whole=not quick)


if __name__ == "__main__":
    if sys.argv[1:]:
        add({"newsvendor": NEWSVENDOR, "demand": DEMAND}[sys.argv[1]], [int(seed) for seed in sys.argv[2:]])
    else:
        run()
