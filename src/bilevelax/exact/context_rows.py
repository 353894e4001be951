"""Tables with one row per context, and the steps that move them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bilevelax.base.errors import require_positive
from bilevelax.core.problem import Problem, PyTree, X, Y

Step = float | Callable[[Any], Any] | None  # a number, an optax schedule, or a default from the problem


def table_of_starts(owner: str, problem: Problem, x: X) -> Y:
    """y_1^0 of every context, stacked; refuses problems whose contexts cannot be listed."""
    if problem.n_contexts is None:
        raise ValueError(
            f"{owner} keeps a row for each context, so it needs finitely many. This problem has n_contexts = None; "
            "make it with from_arrays or Problem(..., n_contexts=..., context_at=...), or use rt_mlmc instead."
        )
    return _starts(problem, x)


@jax.jit
def _starts(problem: Problem, x: X) -> Y:
    return jax.vmap(lambda i: problem.start(x, problem.nth_context(i)))(jnp.arange(problem.n_contexts))


def take(table: PyTree, rows: Any) -> PyTree:
    return jax.tree.map(lambda a: a[rows], table)


def put(table: PyTree, rows: Any, values: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: a.at[rows].set(b), table, values)


def check_step(name: str, owner: str, step: Step) -> None:
    if not callable(step):
        require_positive(name, owner, step, optional=True)


def step_at(name: str, owner: str, step: Step, t: Any, problem: Problem, default: Callable[[float, Any], Any]) -> Any:
    """The step size of iteration t = 0, 1, ...: as given, else ``default(L_g1, t)``."""
    if callable(step):
        return step(t)
    if step is not None:
        return step
    if problem.L_g1 is None:
        raise ValueError(
            f"`{name}` of {owner} must be given where the problem does not know L_g1. Give a number or an optax "
            "schedule, or set Problem(..., L_g1=...)."
        )
    return default(problem.L_g1, t)
