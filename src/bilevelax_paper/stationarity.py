"""Totals to reach an eps-stationary point (Theorem 1), and two problems whose grad F is known.

E|grad F(x_hat_T)|^2 for a uniform iterate is the mean over t <= T and over seeds of |grad F(x_t)|^2, known exactly.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevelax.applications import quadratic
from bilevelax.base.totals import Totals
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Problem, X
from bilevelax.run.records.cells import rounded
from bilevelax_paper import figures
from bilevelax_paper.item import Cell, Drawn, Records, Row, Table
from bilevelax_paper.training import seed_keys, trajectories

CHUNKS = 200
COUNTS = {"xi": "samples of xi", "eta": "samples of eta", "grad_f": "gradients of f", "grad_g": "gradients of g"}
SECONDS = "seconds_per_step"
Maker = Callable[[float], tuple[Estimator, int]]  # eps -> estimator, and how many estimates it averages


class Known(NamedTuple):
    """A problem, its first iterate, and x -> {"square": |grad F(x)|^2}."""

    problem: Problem
    x1: jax.Array
    square: Callable[[Any], dict[str, Any]]


def square_of(grad_F: Callable[[X], Any]) -> Callable[[X], dict[str, Any]]:
    """What to watch at every step. Make it once: runs with the same object share a compiled program."""
    return lambda x: {"square": jnp.sum(grad_F(x) ** 2)}


def measure(
    known: Known, estimator: Estimator, *, eps: float, c: float, horizon: float, seeds: int, together: bool, **more: Any
) -> list[Row]:
    """One row per seed of horizon / eps^4 steps of c eps^2: the running mean of |grad F|^2, and calls per step."""
    every = max(1, round(horizon / eps**4 / CHUNKS))
    length: Any = {"T": every * CHUNKS, "every": every, "every_step": known.square, "together": together}
    scales = [c * eps**2] * seeds
    runs = trajectories(known.problem, estimator, optax.sgd, known.x1, seed_keys(seeds), **length, scales=scales)
    row = {**more, "eps": eps, "every": every, "seconds": runs.seconds}
    means = rounded(runs.means["square"][:, 1:])
    return [{**row, "seed": i, "mean_square": means[i], **runs.per_step(i, COUNTS)} for i in range(seeds)]


def cells(
    known: Known, makers: Mapping[str, Maker], settings: Row, seeds: int, *, together: Sequence[str] = (), **labels: Any
) -> Iterator[Cell]:
    """One for each eps and method; the mean of m estimates has m times the step and runs 1/m as long."""

    def work(eps: float, method: str) -> list[Row]:
        estimator, m = makers[method](eps)
        size = {"eps": eps, "c": settings["c"] * m, "horizon": settings["horizon"] / m, "seeds": seeds}
        return measure(known, estimator, **size, together=method in together, **labels, method=method)

    for eps in settings["eps"]:
        for method in makers:
            yield Cell(", ".join([*labels.values(), method, f"eps = {eps:g}"]), partial(work, eps, method))


def totals(records: Records, methods: Iterable[str], **where: Any) -> dict[str, Totals]:
    """What each method needed."""
    return {method: Totals(records.where(method=method, **where)) for method in methods}


def draw(panel: Any, found: Mapping[str, Totals], kind: str) -> None:
    """Calls of one kind against eps, with the slope of the bound eps^-4 from the first point of the first method."""
    title = f"{COUNTS[kind]} to eps-stationarity"
    panel.set(**figures.LOG_LOG, xlabel="eps", ylabel=COUNTS[kind], title=title)
    for method, total in found.items():
        style = "solid" if method == "RT-MLMC" else "dashed"  # curves may coincide
        figures.points(panel, total.eps, total.calls(kind), method, linestyle=style)
    first = next(iter(found.values()))
    line = [first.calls(kind)[0].value * (eps / first.eps[0]) ** -4 for eps in first.eps]
    figures.reference(panel, first.eps, line, "slope -4 (bound)", "dotted")
    figures.ticks(panel, first.eps)


def drawn(
    found: Mapping[str, Totals], kinds: Sequence[str], beside: Callable[[Any], None] = lambda panel: None
) -> Drawn:
    """A panel of totals for each kind of calls, one more that ``beside`` draws, and the table of them."""
    figure, axes = figures.panels(2)
    for panel, kind in zip(axes, kinds, strict=False):
        draw(panel, found, kind)
    beside(axes[1])
    for panel in axes:
        figures.legend(panel, loc="best")
    return Drawn(figure, [table(found)])


def table(found: Mapping[str, Totals]) -> Table:
    """Steps and samples of each method and eps."""
    rows = []
    for method, total in found.items():
        columns = zip(total.steps(), total.calls("xi"), total.calls("eta"), strict=True)
        rows += [(method, f"{eps:g}", *map(str, cells)) for eps, cells in zip(total.eps, columns, strict=True)]
    return Table("Totals to eps-stationarity", ("method", "eps", "steps", COUNTS["xi"], COUNTS["eta"]), rows)


BEYOND = "exponent of eps, less the bound's, steps over K"  # K is the logarithm that the variance hides
MU_G, L_G1 = 0.8, 1.8  # 1 times 0.8 and 1.5 times 1.2, the extreme per-sample eigenvalues


def theorem_K(eps: float, plus: int = 1) -> int:
    """K = 2 log2(1/eps) plus a constant: twice the accuracy in eps, two more epochs."""
    return max(1, round(2 * math.log2(1 / eps)) + plus)


def matrices() -> quadratic.Quadratic:
    """Eigenvalues of E A from 1 to 1.5; contexts and noise mild enough for many eps to be reached in minutes."""
    found = quadratic.matrices(d_x=3, d_y=5, d_xi=2, mu=1.0, L=1.5, noise=0.3, hessian_noise=0.2)
    return dataclasses.replace(found, B=0.5 * found.B, C=0.2 * found.C, R=0.2 * found.R)


def start(found: quadratic.Quadratic) -> np.ndarray:
    """x_1, at which |grad F| is about 1.25 on the quadratic."""
    return found.x_star + np.array([1.0, -1.0, 1.0])


def known_quadratic() -> Known:
    """The exact oracle; grad F is affine."""
    found = matrices()
    grad_F = lambda x: jnp.asarray(found.hessian_F, x.dtype) @ (x - jnp.asarray(found.x_star, x.dtype))
    return Known(quadratic.problem_of(found), jnp.asarray(start(found), float), square_of(grad_F))


def known_nonconvex() -> Known:
    """The same follower; the leader pays sum 2 u_i^2 / (1 + u_i^2) + eta_b'y + |x|^2/20, u = y - q - R xi.

    At y* every u_i is normal, so grad F needs one-dimensional integrals only.
    """
    found = matrices()
    J, G = np.linalg.solve(found.A, found.B), np.linalg.solve(found.A, found.C)
    spread = np.linalg.norm(G - found.R, axis=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()

    def f(x: jax.Array, y: jax.Array, eta: jax.Array, xi: jax.Array) -> jax.Array:
        q, R = (jnp.asarray(a, y.dtype) for a in (found.q, found.R))
        square = (y - q - R @ xi) ** 2
        return jnp.sum(2 * square / (1 + square)) + eta[0] @ y + jnp.sum(x**2) / 20

    def grad_F(x: jax.Array) -> jax.Array:
        at = lambda a: jnp.asarray(a, x.dtype)
        u = (at(J) @ x - at(found.q))[:, None] + at(spread)[:, None] * at(nodes)[None]
        return at(J).T @ ((4 * u / (1 + u**2) ** 2) @ at(weights)) + x / 10

    problem = dataclasses.replace(quadratic.problem_of(found), f=f)
    return Known(problem, jnp.asarray(start(found), float), square_of(grad_F))


PRICE, BENT, NOISE = 2.0, 0.5, 0.3  # lambda; how far demand is from linear; its noise
LONGEST = 1.5  # |x|^2, up to which mu_g holds


def known_wdro_si() -> Known:
    """WDRO-SI with a linear rule and square loss: the adversary's answer, F and grad F in closed form.

    Demand is a'xi + BENT (xi_1^2 - 1) and noise, xi normal. With r = x'xi less demand's mean and D = 2 PRICE - |x|^2,
    y* - xi = x r / D and F = PRICE E r^2 / D up to a constant, E r^2 = |x - a|^2 + 2 BENT^2.
    """
    a = np.array([0.8, -0.5, 0.3])
    loss = lambda x, y, eta, xi: PRICE * jnp.sum((y - xi) ** 2) - (x @ y - eta) ** 2 / 2

    def demand(key: Any, xi: jax.Array, data: Any) -> jax.Array:
        mean = jnp.asarray(a, xi.dtype) @ xi + BENT * (xi[0] ** 2 - 1)
        return mean + NOISE * jax.random.normal(key, (), xi.dtype)

    def grad_F(x: jax.Array) -> jax.Array:
        away, left = x - jnp.asarray(a, x.dtype), 2 * PRICE - jnp.sum(x**2)
        return 2 * PRICE * (away / left + x * (jnp.sum(away**2) + 2 * BENT**2) / left**2)

    problem = Problem(
        f=lambda x, y, eta, xi: -loss(x, y, eta, xi),
        g=loss,
        sample_context=lambda key, data: jax.random.normal(key, (3,), float),
        sample_conditional=demand,
        init_y=lambda x, xi: xi,
        mu_g=2 * PRICE - LONGEST,
        L_g1=2 * PRICE,
    )
    return Known(problem, jnp.zeros(3, float), square_of(grad_F))


Problems = Mapping[str, Callable[[], Known]]
PROBLEMS: Problems = {"quadratic": known_quadratic, "nonconvex": known_nonconvex, "WDRO-SI": known_wdro_si}
