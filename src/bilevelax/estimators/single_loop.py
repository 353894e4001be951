"""SOBA and TTSA: one lower step per upper step, on one shared y or on a table of y per context."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from optax import tree

from bilevelax.base.errors import require_choice, require_integer, require_unconstrained
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Estimate, Estimator
from bilevelax.core.hypergradient import hypergradient
from bilevelax.core.inverse import InverseHessian, inverse_of
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.context_rows import Step, check_step, put, step_at, table_of_starts, take
from bilevelax.problems.joint import at_answer, draw_pair

METHODS = ("soba", "ttsa")
DECAY = {"soba": 0.5, "ttsa": 0.4}  # the lower step falls as t^-DECAY


class SingleLoopState(NamedTuple):
    """y and, for SOBA, the adjoint v: one of each, or tables of M rows."""

    t: jax.Array
    y: Y
    v: Y | None


def merged(problem: Problem) -> Problem:
    """The problem to someone who takes the context for noise: no xi, and eta = (xi, eta) drawn jointly."""

    one_for_all = lambda x, y, pair: y
    return problem.replace(
        f=at_answer(problem.f, one_for_all),
        g=at_answer(problem.g, one_for_all),
        sample_context=lambda key, data: (),
        sample_conditional=lambda key, xi, data: draw_pair(key, dataclasses.replace(problem, data=data)),
        init_y=lambda x, xi: zero_start(problem, x),
        n_contexts=None,
        context_at=None,
        support=None,
    )


def zero_start(problem: Problem, x: X) -> Y:
    """Where one y for all contexts starts: which context's start? None's, zero."""
    key = jax.eval_shape(lambda: random.key(0))
    shapes = jax.eval_shape(lambda key, problem, x: problem.start(x, problem.context(key)), key, problem, x)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def soba(key: Key, problem: Problem, x: X, xi: Xi, y: Y, v: Y, beta: Any, batch: int) -> tuple[X, Y, Y, Cost]:
    """(direction of x, new y, new v, cost): all three from the old x, y and v, each on fresh samples."""
    problem = problem.averaged(batch)
    eta_y, eta_v, eta_f, eta_c = (problem.conditional(k, xi) for k in random.split(key, 4))
    grad_x, grad_y = problem.grad_f(x, y, eta_f, xi)
    grad = tree.sub(grad_x, problem.cross_g(x, y, eta_c, xi, v))
    new_y = trees.add_scale(y, -beta, problem.grad_g(x, y, eta_y, xi))
    new_v = trees.add_scale(v, -beta, tree.sub(problem.hess_g(x, y, eta_v, xi, v), grad_y))
    return grad, new_y, new_v, Cost(eta=4, grad_f=1, grad_g=1, hess_g=1, cross_g=1).times(batch)


def ttsa(
    key: Key, problem: Problem, x: X, xi: Xi, y: Y, inverse: InverseHessian, beta: Any, batch: int
) -> tuple[X, Y, Cost]:
    """(direction of x at the new y, new y, cost)."""
    key_y, key_v = random.split(key)
    average = problem.averaged(batch)
    y = trees.add_scale(y, -beta, average.grad_g(x, y, average.conditional(key_y, xi), xi))
    grad, cost = hypergradient(key_v, problem, x, y, xi, inverse, batch)
    return grad, y, cost + Cost(eta=batch, grad_g=batch)


def single_loop(
    method: str = "soba",
    table: bool = False,
    beta: Step = None,
    inverse: InverseHessian | None = None,
    batch: int = 1,
) -> Estimator:
    r"""Single-loop stochastic bilevel methods, one lower step of size beta_t per estimate.

    - ``soba``: y -= beta_t grad_2 g, v -= beta_t (g22 v - grad_2 f), and the direction
      grad_1 f - g12 v, all at the same point.
    - ``ttsa``: y -= beta_t grad_2 g, then eq. (6) at the new y.

    With one y for all contexts they solve another problem, min_x E f(x, y(x)) with
    y(x) = argmin_y E_xi E_{eta|xi} g: right if y* does not depend on xi, wrong on contextual
    problems. Each draw then costs a context as well. With ``table=True`` each of finitely many
    contexts has its own y (and v): memory O(M d_y), and a row moves once in M steps.

    Args:
        method: "soba" or "ttsa".
        table: a row per context instead of one shared y.
        beta: lower step, a number or an optax schedule of t - 1 = 0, 1, ...; by default
            t^{-1/2} / (2 L_g1) for SOBA and t^{-2/5} / (2 L_g1) for TTSA.
        inverse: of TTSA; by default the problem's own, else `neumann()`.
        batch: samples averaged in each draw.
    """
    require_choice("method", "single_loop", method, METHODS)
    require_choice("table", "single_loop", table, (False, True))
    require_integer("batch", "single_loop", batch, 1)
    check_step("beta", "single_loop", beta)

    def init(problem: Problem, x: X) -> SingleLoopState:
        require_unconstrained("single_loop", problem)
        y = table_of_starts("single_loop(table=True)", problem, x) if table else zero_start(problem, x)
        return SingleLoopState(jnp.zeros((), jnp.int32), y, tree.zeros_like(y) if method == "soba" else None)

    def estimate(key: Key, problem: Problem, x: X, state: SingleLoopState) -> tuple[Estimate, SingleLoopState]:
        key_xi, key_step = random.split(key)
        decay = lambda L, t: (1 + t).astype(float) ** -DECAY[method] / (2 * L)
        step = step_at("beta", "single_loop", beta, state.t, problem, decay)
        inner = problem if table else merged(problem)
        i = random.randint(key_xi, (), 0, problem.n_contexts or 0) if table else None
        xi = problem.nth_context(i) if table else ()
        y, v = take((state.y, state.v), i) if table else (state.y, state.v)
        if method == "soba":
            grad, y, v, cost = soba(key_step, inner, x, xi, y, v, step, batch)
        else:
            grad, y, cost = ttsa(key_step, inner, x, xi, y, inverse_of(inner, inverse), step, batch)
        if table:
            y, v = put((state.y, state.v), i, (y, v))
        cost = dataclasses.replace(cost, xi=1 if table else cost.eta)
        return Estimate(grad, cost, {}), SingleLoopState(state.t + 1, y, v)

    return Estimator(init, estimate, generic=True)
