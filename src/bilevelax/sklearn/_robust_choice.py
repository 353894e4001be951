"""Rules with linear scores fitted under an ambiguity set, and its size chosen by folds of the rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from bilevelax.applications._robust_linear import Rows, empirical, rule, sinkhorn, wasserstein
from bilevelax.base.compiling import program

COSTS: dict[str | None, Any] = {"sinkhorn": sinkhorn, "wasserstein": wasserstein, None: empirical}
SIZES: dict[str | None, tuple[str, ...]] = {"sinkhorn": ("lam", "eps"), "wasserstein": ("radius",), None: ("alpha",)}
# In standard deviations of the columns and, for a regression, of the target; from the least cautious on
GRIDS: dict[str, tuple[float, ...]] = {
    "lam": (100.0, 30.0, 10.0, 3.0, 1.0),
    "eps": (0.03, 0.3),
    "radius": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "alpha": tuple(10.0 ** np.arange(-5, 1.1, 0.5)),
}
ROUGH, FINE = 1e-3, 1e-8  # of the gradient: to choose, and to keep
SLACK = 1e-9


class Task(NamedTuple):
    """Standardised rows (n, d) and their targets (outputs, n): one rule for each output."""

    a: np.ndarray
    targets: np.ndarray
    loss: str
    ambiguity: str | None


class Fitted(NamedTuple):
    """Rules, w (outputs, d) and b (outputs,)."""

    w: np.ndarray
    b: np.ndarray
    n_iter: int


@program(static_argnames=("loss", "ambiguity"))
def cost_and_slope(flat: Any, rows: Rows, sizes: Any, loss: str, ambiguity: str | None) -> tuple[jax.Array, jax.Array]:
    """The sum over outputs of the robust cost, and its gradient."""
    outputs, d = len(rows.label), rows.a.shape[1]
    unravel = ravel_pytree(jax.tree.map(lambda a: jnp.zeros((outputs, *a.shape), flat.dtype), rule(d)))[1]

    def total(flat: jax.Array) -> jax.Array:
        one = lambda x, label: COSTS[ambiguity](x, rows._replace(label=label), *sizes, loss)
        return jnp.sum(jax.vmap(one)(unravel(flat), rows.label))

    return jax.value_and_grad(total)(flat)


def fitted(task: Task, weight: np.ndarray, sizes: Sequence[float], start: Fitted, tol: float, most: int) -> Fitted:
    """L-BFGS in double precision; the costs are convex."""
    outputs, d = start.w.shape
    with jax.enable_x64(True):
        rows = jax.tree.map(jnp.asarray, Rows(task.a, task.targets, weight / weight.sum()))
        given = tuple(jnp.asarray(float(size)) for size in sizes)

        def at(flat: np.ndarray) -> tuple[float, np.ndarray]:
            cost, slope = cost_and_slope(jnp.asarray(flat), rows, given, loss=task.loss, ambiguity=task.ambiguity)
            return float(cost), np.asarray(slope, np.float64)

        first = np.concatenate([start.b.ravel(), start.w.ravel()])
        settings = {"gtol": tol, "ftol": 1e-15, "maxiter": most, "maxcor": 20}
        found = minimize(at, first, jac=True, method="L-BFGS-B", options=settings)
    return Fitted(found.x[outputs:].reshape(outputs, d), found.x[:outputs], int(found.nit))


def nothing(task: Task) -> Fitted:
    outputs, d = len(task.targets), task.a.shape[1]
    return Fitted(np.zeros((outputs, d)), np.zeros(outputs), 0)


class Choice(NamedTuple):
    """Sizes tried, the held-out loss of each with its standard error, the mean length of their rules; which is kept."""

    tried: list[tuple[float, ...]]
    loss: np.ndarray
    stderr: np.ndarray
    length: np.ndarray
    best: int


def candidates(given: dict[str, Any], ambiguity: str | None) -> list[tuple[float, ...]]:
    """All combinations of the sizes that are to be chosen with those that are given."""
    axes = [GRIDS[name] if isinstance(given[name], str) else (float(given[name]),) for name in SIZES[ambiguity]]
    return list(itertools.product(*axes))


def chosen(
    task: Task, tried: list[tuple[float, ...]], folds: list[Any], losses: Any, cautious: bool, most: int
) -> Choice:
    """The sizes with the least held-out loss; ``cautious``: of those that rows cannot tell from it, the most robust.

    Every fold is all rows with weights of 0 or 1, so that one program serves all. A candidate is told from the best by
    one standard error of the differences row by row; shorter w are more robust: no move of 1 changes scores
    by more than |w|.
    """
    held: np.ndarray = np.full((len(tried), len(task.a)), np.nan)
    lengths = np.zeros((len(tried), len(folds)))
    for f, (train, test) in enumerate(folds):
        weight: np.ndarray = np.zeros(len(task.a))
        weight[train] = 1
        model = nothing(task)
        for c, sizes in enumerate(tried):
            model = fitted(task, weight, sizes, model, ROUGH, most)
            held[c, test] = losses(task.a[test] @ model.w.T + model.b, test)
            lengths[c, f] = np.sqrt(np.sum(model.w**2, axis=1)).mean()
    seen = held[:, ~np.isnan(held).any(axis=0)]
    mean, length = seen.mean(axis=1), lengths.mean(axis=1)
    best = int(np.argmin(mean))
    apart = seen - seen[best]
    error = apart.std(axis=1) / np.sqrt(seen.shape[1])
    if cautious:
        alike = np.flatnonzero(apart.mean(axis=1) <= error + SLACK)
        best = int(alike[np.argmin(length[alike])])
    return Choice(tried, mean, seen.std(axis=1) / np.sqrt(seen.shape[1]), length, best)
