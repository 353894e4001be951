"""The follower's problem on a fixed set of samples: its derivatives, minimiser and hypergradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevelax.errors import require_integer, require_positive
from bilevelax.estimate import Cost, Count
from bilevelax.newton import LinearSolver, Product, Solution, cg, direct_or_cg, newton
from bilevelax.problem import Eta, Problem, PyTree, X, Xi, Y


class Average(NamedTuple):
    """Derivatives of the weighted mean losses over a set of ``size`` samples, at fixed x and xi."""

    grad_f: Callable[[Y], tuple[X, Y]]
    grad_g: Callable[[Y], Y]
    hess_g: Callable[[Y], Product]  # linearised at y once, then applied to many r
    cross_g: Callable[[Y, Y], X]
    size: Count


def of_stack(problem: Problem, x: X, xi: Xi, etas: Eta, weights: jax.Array, size: Count) -> Average:
    """The average over samples in memory. ``weights`` sum to one; ``size`` of them are not zero."""
    mean, eta = problem.weighted(), (etas, weights)
    return Average(
        grad_f=lambda y: mean.grad_f(x, y, eta, xi),
        grad_g=lambda y: mean.grad_g(x, y, eta, xi),
        hess_g=lambda y: mean.linear_hess_g(x, y, eta, xi),
        cross_g=lambda y, r: mean.cross_g(x, y, eta, xi, r),
        size=size,
    )


def of_blocks(
    problem: Problem, x: X, xi: Xi, block: Callable[[Count], tuple[Eta, jax.Array]], n: Count, size: Count
) -> Average:
    """The same over n blocks ``block(b) -> (samples, weights)``; n may be traced and nothing is stored."""
    mean = problem.weighted()

    def total(term: Callable[[Eta], PyTree]) -> PyTree:
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda: term(block(0))))
        return lax.fori_loop(0, n, lambda b, sum_: tree.add(sum_, term(block(b))), zero)

    return Average(
        grad_f=lambda y: total(lambda eta: mean.grad_f(x, y, eta, xi)),
        grad_g=lambda y: total(lambda eta: mean.grad_g(x, y, eta, xi)),
        hess_g=lambda y: lambda r: total(lambda eta: mean.hess_g(x, y, eta, xi, r)),
        cross_g=lambda y, r: total(lambda eta: mean.cross_g(x, y, eta, xi, r)),
        size=size,
    )


# (average, y to start from, first=None, slope=None) -> Solution: `first` is the gradient norm that the tolerance is
# relative to, `slope` the gradient at y where it is known
Solver = Callable[..., Solution]


def newton_solver(iterations: int = 50, linear: LinearSolver | None = None, tol: float | None = None) -> Solver:
    """`newton`: a few steps, whose systems are by default solved to 1 % (directly for d_y up to 16).

    Args:
        iterations: at most that many.
        linear: solver of the Newton systems.
        tol: gradient norm to stop at, relative to that at ``init_y``; by default 7e-5 in single and 4e-10
            in double precision.
    """
    require_integer("iterations", "newton_solver", iterations, 1)
    require_positive("tol", "newton_solver", tol, optional=True)
    linear = linear or direct_or_cg(tol=1e-2)

    def solve(average: Average, y: Y, first: Any = None, slope: Any = None) -> Solution:
        return newton(average.grad_g, average.hess_g, y, first, slope, iterations=iterations, linear=linear, tol=tol)

    return solve


class Response(NamedTuple):
    """The exact hypergradient of a sample-average problem, and how it was found."""

    grad: X
    solution: Solution
    cost: Cost  # without the samples


def respond_on(
    average: Average, y: Y, solver: Solver, linear: LinearSolver, first: Any = None, slope: Any = None
) -> Response:
    r"""The hypergradient of the mean losses over one set of samples,

    .. math::
        \nabla_1 \bar f - \nabla^2_{12} \bar g \, (\nabla^2_{22} \bar g)^{-1} \nabla_2 \bar f
        \quad\text{at}\quad y = \arg\min \bar g

    solved from y. Where it starts changes the cost, not the answer.
    """
    solution = solver(average, y, first, slope)
    grad_x, grad_y = average.grad_f(solution.y)
    r, products = linear(average.hess_g(solution.y), grad_y)
    grad = tree.sub(grad_x, average.cross_g(solution.y, r))
    calls = Cost(grad_f=1, grad_g=solution.gradients, hess_g=solution.products + products, cross_g=1)
    cost = jax.tree.map(lambda a: jnp.asarray(a, jnp.int32), calls.times(average.size))
    return Response(grad, solution, cost)


def respond_from_start(
    average: Average, problem: Problem, x: X, xi: Xi, solver: Solver, linear: LinearSolver
) -> Response:
    """`respond_on` from ``init_y``, or from the problem's ``guess`` where it has one with a smaller gradient.

    A guess is solved to the gradient norm that a start from ``init_y`` would have been: it changes the
    cost, not the answer.
    """
    cold = problem.start(x, xi)
    if problem.guess is None:
        return respond_on(average, cold, solver, linear)
    starts = cold, problem.guess(x, xi, problem.data)
    slopes = [average.grad_g(y) for y in starts]
    first, there = map(tree.norm, slopes)
    better = there < first  # not where the guess is not finite
    y, slope = jax.tree.map(lambda old, new: jnp.where(better, new, old), *zip(starts, slopes, strict=True))
    response = respond_on(average, y, solver, linear, first, slope)
    return response._replace(cost=response.cost + Cost(grad_g=2 * average.size))


def newton_cg(
    problem: Problem,
    x: X,
    xi: Xi,
    eta: Eta,
    y: Y,
    *,
    iterations: int = 50,
    cg_steps: int = 100,
    tol: float | None = None,
) -> Solution:
    """argmin_y g(x, y, eta, xi) for one fixed eta (of `Problem.averaged`: a stack) by damped Newton-CG.

    Stops at ``tol`` times the first gradient norm, by default where rounding ends it.
    """
    grad = lambda y: problem.grad_g(x, y, eta, xi)
    hessian = lambda y: lambda r: problem.hess_g(x, y, eta, xi, r)
    if tol is None:
        tol = 10 * float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps)
    return newton(grad, hessian, y, iterations=iterations, linear=cg(cg_steps, 1e-6), tol=tol)
