"""Sample-average gradients whose solves start where the last one of their context ended."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import random
from optax import tree

from bilevelax.errors import require_choice, require_integer
from bilevelax.estimate import Cost, Estimate, Estimator, State
from bilevelax.estimators.saa import F_SAMPLES, sample_average
from bilevelax.minibatch import mean
from bilevelax.newton import LinearSolver, default_tol, direct_or_cg
from bilevelax.problem import Key, Problem, X, Y
from bilevelax.sample_average import Solver, newton_solver, respond_on


def warm_saa(
    m: int = 32,
    n: int | str = 32,
    solver: Solver | None = None,
    linear_solver: LinearSolver | None = None,
    f_samples: str = "same",
) -> Estimator:
    """The mean of m `saa` estimates, with a table of y for each of finitely many contexts as its state.

    Every solve reaches the same gradient norm, set by a cold start, wherever it begins: the
    table changes the cost, not the mean. It pays where y moves little between visits, as with
    ``n="all"`` or many samples. It keeps state, so it has its own batch size m instead of `minibatch`.

    Args:
        m: contexts of a step, drawn with replacement from those of the problem.
        n, solver, linear_solver, f_samples: as in `saa`.
    """
    require_integer("m", "warm_saa", m, 1)
    if n != "all":
        require_integer("n", "warm_saa", n, 1)
    require_choice("f_samples", "warm_saa", f_samples, F_SAMPLES)
    solver = solver or newton_solver()
    linear_solver = linear_solver or direct_or_cg()

    def init(problem: Problem, x: X) -> State:
        rows = jnp.arange(_contexts(problem), dtype=jnp.int32)
        return jax.vmap(lambda i: problem.start(x, problem.nth_context(i)))(rows)

    def one(key: Key, i: jax.Array, y: Y, problem: Problem, x: X) -> tuple[Estimate, Y]:
        xi = problem.nth_context(i)
        average, drawn = sample_average(key, problem, x, xi, n, f_samples)
        cold = tree.norm(average.grad_g(problem.start(x, xi)))
        response = respond_on(average, y, solver, linear_solver, default_tol(cold.dtype) * cold)
        cost = drawn + response.cost + Cost(grad_g=average.size)
        aux = {"lower_grad_norm": response.solution.grad_norm, "newton_steps": response.solution.iterations}
        return Estimate(response.grad, cost, aux), response.solution.y

    def estimate(key: Key, problem: Problem, x: X, table: State) -> tuple[Estimate, State]:
        key_xi, key_y = random.split(key)
        rows = random.randint(key_xi, (m,), 0, _contexts(problem), jnp.int32)
        keys = jax.vmap(lambda j: random.fold_in(key_y, j))(jnp.arange(m))
        ys = jax.tree.map(lambda a: a[rows], table)
        estimates, ys = jax.vmap(lambda key, i, y: one(key, i, y, problem, x))(keys, rows, ys)
        return mean(estimates), jax.tree.map(lambda a, new: a.at[rows].set(new), table, ys)

    return Estimator(init, estimate)


def _contexts(problem: Problem) -> int:
    if problem.n_contexts is None:
        raise ValueError("warm_saa needs finitely many contexts: Problem(..., n_contexts=..., context_at=...).")
    return problem.n_contexts
