r"""Sinkhorn distributionally robust optimization (Wang, Gao and Xie 2021): rules for laws near that of the rows.

.. math::
    \min_x \lambda\epsilon \, E_\xi \log E_{\eta|\xi} \exp( l(x, \eta) / (\lambda\epsilon) ), \quad
    \eta \sim N(\xi, \epsilon I)

is the dual of the worst law by entropic transport: lambda is the price of moving a row by |move|^2 / 2, epsilon the
entropy that keeps the worst law smooth. A conditional stochastic problem: contexts are rows, the lower level is a
mean of exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.applications import Application
from bilevelax.applications._robust_linear import LOSSES, Rows, empirical, length, rule, scores, sinkhorn
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.problems.special_cases import conditional_stochastic

FLOOR = 0.1  # of u, which is at least one for convex losses
RowLoss = Callable[[X, jax.Array, Any], jax.Array]  # (x, features, label) -> l


class Centre(NamedTuple):
    """A context: a row of the table, its label, and the prices that all rows share."""

    a: jax.Array
    label: Any
    lam: jax.Array
    eps: jax.Array


class Centres(NamedTuple):
    """The data leaves. One program serves every lam and eps."""

    a: jax.Array  # (n, d)
    label: Any  # (n, ...)
    lam: jax.Array
    eps: jax.Array
    nodes: tuple[jax.Array, ...]  # of Gauss and Hermite and their weights; empty where noise is drawn


def problem_of(loss: RowLoss, a: Any, label: Any, lam: float, eps: float, floor: float = FLOOR) -> Problem:
    """Sinkhorn DRO of a smooth loss(x, features, label), for features moved in all their columns.

    A loss that is not convex in the features needs a smaller ``floor`` (see `_problem`).
    """
    d = np.shape(a)[1]
    draw = lambda key, xi, data: random.normal(key, (d,), xi.a.dtype)
    moved = lambda x, eta, xi: loss(x, xi.a + jnp.sqrt(xi.eps) * eta, xi.label)
    return _problem(moved, lambda x, xi: _first_order(loss, x, xi), draw, _table(a, label, lam, eps), floor)


def linear_problem_of(loss: str, a: Any, label: Any, lam: float, eps: float, nodes: int) -> Problem:
    """The same for linear scores, whose noise has one dimension: its outcomes are ``nodes`` of Gauss and Hermite."""
    z, weights = np.polynomial.hermite_e.hermegauss(nodes)
    data = _table(a, label, lam, eps)._replace(nodes=(jnp.asarray(z), jnp.asarray(weights / weights.sum())))
    of = LOSSES[loss].of

    def moved(x: X, z: jax.Array, xi: Centre) -> jax.Array:
        return of(scores(x, xi.a) + jnp.sqrt(xi.eps) * length(x["w"]) * z, xi.label)

    def draw(key: Key, xi: Centre, data: Centres) -> jax.Array:
        z, weights = data.nodes
        return z[random.choice(key, len(z), p=weights)]

    centre = lambda x, xi: _first_order(lambda x, a, label: of(scores(x, a), label), x, xi)
    return _problem(moved, centre, draw, data).replace(support=lambda xi, data: (data.nodes[0], data.nodes[1]))


def _table(a: Any, label: Any, lam: float, eps: float) -> Centres:
    a = jnp.asarray(a, float)
    return Centres(
        a, jax.tree.map(lambda b: jnp.asarray(b), label), jnp.asarray(lam, a.dtype), jnp.asarray(eps, a.dtype), ()
    )


def _first_order(loss: RowLoss, x: X, xi: Centre) -> jax.Array:
    """l + |grad l|^2 / (2 lam), the answer for a loss that is linear in the row."""
    value, slope = jax.value_and_grad(loss, argnums=1)(x, xi.a, xi.label)
    return value + jnp.sum(slope**2) / (2 * xi.lam)


def _problem(moved: Any, centre: Any, draw: Any, data: Centres, floor: float = FLOOR) -> Problem:
    """phi(u) = m + lam eps log u with u = E exp((l - m) / (lam eps)): true for every m(x, xi).

    With m of first order u is near one, so that neither exponentials nor the first term of RT-MLMC, at u = 1, are far
    off; and u >= 1 where the loss is convex in the features. Below ``floor``, where only iterates of a lower solver
    come, the logarithm goes on along its tangent.
    """
    n = len(data.a)

    def at(i: Any, data: Centres) -> Centre:
        return Centre(data.a[i], jax.tree.map(lambda b: b[i], data.label), data.lam, data.eps)

    def h(x: X, eta: Any, xi: Centre) -> jax.Array:
        return jnp.exp((moved(x, eta, xi) - centre(x, xi)) / (xi.lam * xi.eps))

    def phi(x: X, u: jax.Array, xi: Centre) -> jax.Array:
        inside = jnp.maximum(u, floor)
        return centre(x, xi) + xi.lam * xi.eps * (jnp.log(inside) + (u - inside) / floor)

    problem = conditional_stochastic(
        phi,
        h,
        lambda key, data: at(random.randint(key, (), 0, n), data),
        draw,
        data,
        init_y=lambda x, xi: jnp.ones((), xi.a.dtype),
    )
    return problem.replace(n_contexts=n, context_at=at)


def classes(n: int, d: int, key: Key) -> tuple[jax.Array, jax.Array]:
    """Two overlapping clouds that differ in all columns by less and less; labels -1 and 1."""
    key_label, key_a = random.split(key)
    label = random.rademacher(key_label, (n,), float)
    centre = 1.0 / jnp.sqrt(1.0 + jnp.arange(d, dtype=float))
    return label[:, None] * centre[None, :] + random.normal(key_a, (n, d), float), label


def line(n: int, d: int, key: Key) -> tuple[jax.Array, jax.Array]:
    """Rows of normal numbers and a linear answer with noise."""
    key_a, key_noise = random.split(key)
    a = random.normal(key_a, (n, d), float)
    return a, a @ (0.5 / jnp.sqrt(1.0 + jnp.arange(d, dtype=float))) + 0.5 * random.normal(key_noise, (n,), float)


SMALLEST = {"n": 2, "d": 2, "nodes": 3, "test_rows": 10}  # for the contract tests


def make(
    loss: str = "logistic",
    lam: float = 8.0,
    eps: float = 0.1,
    nodes: int | None = None,
    n: int = 200,
    d: int = 5,
    shift: float = 0.5,
    test_rows: int = 10_000,
    seed: int = 0,
) -> Application:
    """A linear classifier or regression that is robust to rows that move, on made rows.

    Metrics: ``robust_cost``, what is minimised, exactly; ``train_cost``; ``test_cost`` on fresh rows; and
    ``moved_cost`` there after every row moved by ``shift`` in the direction that hurts this rule most.

    Args:
        loss: ``logistic`` or ``squared``.
        lam: price of moving a row by ``|move|^2 / 2``. For ``squared`` the cost is finite where ``lam > |w|^2``, and
            draws have a finite variance where ``lam > 2 |w|^2``.
        eps: entropy: rows are blurred by normal noise of variance eps.
        nodes: of Gauss and Hermite's quadrature along the score, all outcomes of a context; by default noise is drawn
            in all columns, as any rule would need it.
        n, d: rows and columns.
        shift: of the metric.
        test_rows: fresh rows.
        seed: of the rows.
    """
    require_choice("loss", "sinkhorn_dro", loss, tuple(LOSSES))
    for name, value in {"lam": lam, "eps": eps}.items():
        require_positive(name, "sinkhorn_dro", value)
    for name, count in {"n": n, "d": d, "test_rows": test_rows}.items():
        require_integer(name, "sinkhorn_dro", count, 1)
    if nodes is not None:
        require_integer("nodes", "sinkhorn_dro", nodes, 2, 64)
    if not math.isfinite(shift) or shift < 0:
        raise ValueError(f"`shift` of sinkhorn_dro must be a number >= 0. Got {shift!r}.")
    made = classes if loss == "logistic" else line
    key, key_test = random.split(random.key(seed))
    (a, label), fresh = made(n, d, key), made(test_rows, d, key_test)
    if nodes is None:
        problem = problem_of(lambda x, a, b: LOSSES[loss].of(scores(x, a), b), a, label, lam, eps)
    else:
        problem = linear_problem_of(loss, a, label, lam, eps, nodes)
    rows, test = (Rows(a, b, jnp.full(len(b), 1 / len(b), float)) for a, b in ((a, label), fresh))

    def metrics(x: X) -> dict[str, float]:
        worst = test._replace(a=moved_most(x, test, shift, loss))
        found: PyTree = {
            "robust_cost": sinkhorn(x, rows, jnp.asarray(lam, float), jnp.asarray(eps, float), loss),
            "train_cost": empirical(x, rows, 0.0, loss),
            "test_cost": empirical(x, test, 0.0, loss),
            "moved_cost": empirical(x, worst, 0.0, loss),
        }
        return {name: float(value) for name, value in found.items()}

    return Application(problem, rule(d), metrics)


def moved_most(x: X, rows: Rows, shift: float, loss: str) -> jax.Array:
    """Each row moved by ``shift`` where the loss of these scores rises fastest: no move of that length is worse."""
    uphill = jnp.sign(jax.vmap(jax.grad(LOSSES[loss].of))(scores(x, rows.a), rows.label))
    return rows.a + shift * uphill[:, None] * (x["w"] / length(x["w"]))[None, :]
