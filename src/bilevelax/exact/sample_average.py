"""The follower's problem on a fixed set of samples: its derivatives, minimiser and hypergradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevelax.base.compiling import traced_once
from bilevelax.base.errors import require_integer, require_positive, require_unconstrained
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Count
from bilevelax.core.problem import Eta, Problem, PyTree, X, Xi, Y
from bilevelax.exact.constraints.semismooth import Inside, Where, inside_of
from bilevelax.exact.constraints.solve import adjoint_on_rows, lane_of, solve_inside
from bilevelax.exact.groups import in_groups
from bilevelax.exact.linear import FEW_ENTRIES, LinearSolver, Product, cg, direct_or_cg, refined
from bilevelax.exact.newton import Solution, newton

ROWS_A_BLOCK = 1024  # rows that a reference adds up at once


class Average(NamedTuple):
    """The weighted mean losses over a set of ``size`` samples, at fixed x and xi: f, and derivatives."""

    f: Callable[[Y], jax.Array]
    grad_f: Callable[[Y], tuple[X, Y]]
    grad_g: Callable[[Y], Y]
    value_g: Callable[[Y], tuple[jax.Array, Y]]  # g and its gradient
    hess_g: Callable[[Y], Product]  # linearised at y once, then applied to many r
    cross_g: Callable[[Y, Y], X]
    size: Count
    inside: Inside | None = None  # the set that y is chosen from


def of_stack(problem: Problem, x: X, xi: Xi, etas: Eta, weights: jax.Array, size: Count) -> Average:
    """The average over samples in memory. ``weights`` sum to one; ``size`` of them are not zero."""
    mean, eta = problem.weighted(), (etas, weights)
    return Average(
        f=lambda y: mean.f(x, y, eta, xi),
        grad_f=lambda y: mean.grad_f(x, y, eta, xi),
        grad_g=lambda y: mean.grad_g(x, y, eta, xi),
        value_g=lambda y: mean.value_g(x, y, eta, xi),
        hess_g=lambda y: mean.linear_hess_g(x, y, eta, xi),
        cross_g=lambda y, r: mean.cross_g(x, y, eta, xi, r),
        size=size,
        inside=inside_of(problem, x, xi),
    )


def of_blocks(
    problem: Problem, x: X, xi: Xi, block: Callable[[Count], tuple[Eta, jax.Array]], n: Count, size: Count
) -> Average:
    """The same over n blocks ``block(b) -> (samples, weights)``; n may be traced and nothing is stored."""
    mean = problem.weighted()

    def total(term: Callable[[Eta], PyTree]) -> PyTree:
        of_block = traced_once(lambda b: term(block(b)))
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(of_block, jnp.int32(0)))
        return lax.fori_loop(0, n, lambda b, sum_: tree.add(sum_, of_block(jnp.asarray(b, jnp.int32))), zero)

    return Average(
        f=lambda y: total(lambda eta: mean.f(x, y, eta, xi)),
        grad_f=lambda y: total(lambda eta: mean.grad_f(x, y, eta, xi)),
        grad_g=lambda y: total(lambda eta: mean.grad_g(x, y, eta, xi)),
        value_g=lambda y: total(lambda eta: mean.value_g(x, y, eta, xi)),
        hess_g=lambda y: lambda r: total(lambda eta: mean.hess_g(x, y, eta, xi, r)),
        cross_g=lambda y, r: total(lambda eta: mean.cross_g(x, y, eta, xi, r)),
        size=size,
        inside=inside_of(problem, x, xi),
    )


def of_all(problem: Problem, x: X, xi: Xi) -> Average:
    """The average over all outcomes of a context: over a stack in memory, or over its blocks on disk."""
    if problem.blocks is not None:
        return of_blocks(problem, x, xi, *problem.blocks(xi, problem.data))
    etas, weights = problem.outcomes(xi)
    return of_stack(problem, x, xi, etas, weights, jnp.sum(weights > 0, dtype=jnp.int32))


def of_stack_in_blocks(problem: Problem, x: X, xi: Xi, etas: Eta, weights: jax.Array) -> Average:
    """`of_stack` for references: `ROWS_A_BLOCK` rows at once, added up in a loop.

    Estimators reduce all rows at once. What they are held against must not: one error of the compiler would be in both.
    """
    rows = len(weights)
    if rows <= ROWS_A_BLOCK:
        return of_stack(problem, x, xi, etas, weights, rows)

    def block(b: Count) -> tuple[Eta, jax.Array]:
        j = b * ROWS_A_BLOCK + jnp.arange(ROWS_A_BLOCK, dtype=jnp.int32)
        row = jnp.minimum(j, rows - 1)  # the last block repeats the last row, with weight zero
        return jax.tree.map(lambda a: a[row], etas), jnp.where(j < rows, weights[row], 0)

    return of_blocks(problem, x, xi, block, -(-rows // ROWS_A_BLOCK), rows)


# (average, y to start from, start=None) -> Solution: `start` is g and its gradient at y where they are known
Solver = Callable[..., Solution]


def newton_solver(iterations: int = 50, linear: LinearSolver | None = None, tol: float | None = None) -> Solver:
    """`newton`: a few steps, whose systems are by default solved to 1 % (directly for d_y up to 16).

    Args:
        iterations: at most that many.
        linear: solver of the Newton systems: `direct`, `cg`.
        tol: relative error of y to stop at; by default 7e-5 in single and 4e-10 in double precision.
    """
    require_integer("iterations", "newton_solver", iterations, 1)
    require_positive("tol", "newton_solver", tol, optional=True)
    linear = linear or direct_or_cg(tol=1e-2)

    def solve(average: Average, y: Y, start: Any = None) -> Solution:
        if average.inside is not None:
            parts = average.grad_g, average.hess_g, average.inside
            return solve_inside(*parts, y, iterations=iterations, linear=linear, tol=tol)
        return newton(average.value_g, average.hess_g, y, start, iterations=iterations, linear=linear, tol=tol)

    return solve


def few_passes(tol: float | None = None) -> tuple[Solver, LinearSolver]:
    """For averages over blocks on disk: a Hessian is formed in one pass, where CG takes one for each product."""
    linear = direct_or_cg(dense=FEW_ENTRIES)
    return newton_solver(linear=linear, tol=tol), linear


class Response(NamedTuple):
    """The exact hypergradient of a sample-average problem, and how it was found."""

    grad: X
    solution: Solution
    cost: Cost  # without the samples

    def watched(self) -> dict[str, jax.Array]:
        """For an estimate's ``aux``: what the solve left, and 1 where it found no minimum."""
        left = self.solution
        unsolved = (~left.solved).astype(left.error.dtype)
        return {"lower_grad_norm": left.grad_norm, "lower_error": left.error, "lower_unsolved": unsolved}


def adjoint_on(
    average: Average, y: Y, where: Any, grad_y: Y, linear: LinearSolver, memory: Any = None
) -> tuple[Y, Count]:
    """(r, products): the inverse Hessian times grad_y; along the face that y lies on, where there is a constraint.

    With W the Hessian of the Lagrangian and J the normals of the face, W r + J' nu = grad_y and J r = 0.
    """
    inside, hessian = average.inside, average.hess_g(y)
    if inside is None:
        return adjoint(hessian, grad_y, memory, linear)
    if where.stiff is not None:
        return adjoint_on_rows(where, hessian, grad_y)
    system = inside.system(hessian, where.face, where.t)
    r, products = adjoint(system, inside.constraint.tangent(where.face, grad_y), None, linear)
    return inside.constraint.tangent(where.face, r), products


def bounds_term(average: Average, y: Y, where: Any, grad_y: Y, r: Y) -> X:
    """What bounds that move with x add to the hypergradient: nu of `adjoint_on` times their derivatives."""
    inside = average.inside
    assert inside is not None
    return inside.moved(y, where, r, tree.sub(grad_y, average.hess_g(y)(r)))


def differentiated(average: Average, y: Y, where: Any, linear: LinearSolver, memory: Any = None) -> tuple[X, Count]:
    """The hypergradient at y by the implicit function theorem, and how many products it took."""
    grad_x, grad_y = average.grad_f(y)
    r, products = adjoint_on(average, y, where, grad_y, linear, memory)
    grad = tree.sub(grad_x, average.cross_g(y, r))
    if average.inside is None or not average.inside.constraint.moves:
        return grad, products
    return tree.add(grad, bounds_term(average, y, where, grad_y, r)), products + 1


def where_at(average: Average, y: Y) -> Where | None:
    """The face of an answer y, from its gradient."""
    if average.inside is None:
        return None
    push = average.inside.problem.push
    z = trees.add_scale(y, -push, average.grad_g(y))
    return Where(average.inside.land(z)[1], jnp.asarray(push, tree.dtype(y, "highest")))


def respond_on(
    average: Average, y: Y, solver: Solver, linear: LinearSolver | None = None, start: Any = None
) -> Response:
    r"""The hypergradient of the mean losses over one set of samples,

    .. math::
        \nabla_1 \bar f - \nabla^2_{12} \bar g \, (\nabla^2_{22} \bar g)^{-1} \nabla_2 \bar f
        \quad\text{at}\quad y = \arg\min \bar g

    solved from y. Where it starts changes the cost, not the answer. Where ``linear`` works with what the solver kept
    of the Hessian, that is used again, and the adjoint refined until it settles.
    """
    respond = lambda: _responded(average, y, solver, linear, start)
    lane = lane_of(average.inside, y)
    return respond() if lane is None else in_groups(respond, lane)


def _responded(average: Average, y: Y, solver: Solver, linear: LinearSolver | None, start: Any) -> Response:
    solution = solver(average, y, start)
    grad, products = differentiated(average, solution.y, solution.where, linear or direct_or_cg(), solution.memory)
    calls = Cost(grad_f=1, grad_g=solution.gradients, hess_g=solution.products + products, cross_g=1)
    cost = jax.tree.map(lambda a: jnp.asarray(a, jnp.int32), calls.times(average.size))
    return Response(grad, solution._replace(memory=None), cost)


def adjoint(product: Product, grad_y: Y, memory: Any, linear: LinearSolver) -> tuple[Y, Count]:
    """The solution of H r = grad_2 f, refined where the matrix is kept, and how many products it took."""
    kind = linear.keeps(tree.size(grad_y))
    if kind is None:
        return linear(product, grad_y)
    memory, formed = (memory, 0) if isinstance(memory, kind) else linear.prepare(product, grad_y)
    r, taken = refined(linear, linear.tol).solve(memory, product, grad_y)
    return r, formed + taken


def respond_from_start(
    average: Average, problem: Problem, x: X, xi: Xi, solver: Solver, linear: LinearSolver | None = None
) -> Response:
    """`respond_on` from ``init_y``, or from the problem's ``guess`` where it has one with a smaller gradient.

    A guess changes the cost, not the answer.
    """
    cold = problem.start(x, xi)
    if problem.guess is None:
        return respond_on(average, cold, solver, linear)
    guess = problem.guess(x, xi, problem.data)
    if average.inside is not None:  # its solver tells a start by nearness to the answer, not by the gradient
        landed = average.inside.land(guess)[0]
        finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(landed)]))
        return respond_on(average, tree.where(finite, landed, cold), solver, linear)
    starts = cold, guess
    known = [average.value_g(y) for y in starts]
    first, there = (tree.norm(slope) for _, slope in known)
    better = there < first  # not where the guess is not finite
    y, start = jax.tree.map(lambda old, new: jnp.where(better, new, old), *zip(starts, known, strict=True))
    response = respond_on(average, y, solver, linear, start)
    return response._replace(cost=response.cost + Cost(grad_g=2 * average.size))


def tightest(y: Y) -> float:
    """The relative error at which rounding ends a solve."""
    return 10 * float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps)


def tight_solver(y: Y) -> Solver:
    """Damped Newton for y like this one, until rounding ends it: tighter than estimators, by another linear solver."""
    return newton_solver(linear=tight_linear(), tol=tightest(y))


def tight_linear() -> LinearSolver:
    """Conjugate gradients that know the units of y (Jacobi): what references solve with."""
    return cg(100, 1e-6, jacobi=True)


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

    Stops at the relative error ``tol`` of y, by default where rounding ends it.
    """
    require_unconstrained("newton_cg", problem, "respond")
    value = lambda y: problem.value_g(x, y, eta, xi)
    hessian = lambda y: lambda r: problem.hess_g(x, y, eta, xi, r)  # a product is a call of g, as `Cost` counts it
    return newton(value, hessian, y, iterations=iterations, linear=cg(cg_steps, 1e-6), tol=tol or tightest(y))
