"""Newton's method on y = P(y - t grad g(y)), whose steps see the face that the next point will lie on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevelax.core import trees
from bilevelax.core.problem import Problem, X, Xi, Y
from bilevelax.exact.constraints.constraint import Constraint, Face
from bilevelax.exact.linear import LinearSolver, Product, default_tol
from bilevelax.exact.newton import Solution

UNSOLVED = 1e-2  # relative error of y from which on a problem counts as not solved
HALVINGS = 5  # of a Newton step, before a projected gradient step is taken instead


class Inside(NamedTuple):
    """The follower's set at fixed x and xi."""

    constraint: Constraint
    problem: Problem
    x: X
    xi: Xi

    def land(self, z: Y) -> tuple[Y, Face]:
        return self.constraint.land(z, self.x, self.xi)

    def system(self, hessian: Product, face: Face, t: Any) -> Product:
        """The Hessian of the Lagrangian along a face; the identity across it, so that it can be inverted."""

        def product(r: Y) -> Y:
            kept = self.constraint.tangent(face, r)
            across = tree.sub(r, kept)
            bent = trees.scale(1 / t, self.constraint.bend(face, kept))
            return tree.add(tree.add(self.constraint.tangent(face, hessian(kept)), bent), across)

        return product

    def moved(self, y: Y, where: Where, r: Y, rest: Y) -> X:
        """What moving bounds add to the hypergradient."""
        return self.constraint.moved(where.face, self.x, self.xi, y, r, rest, where.t)


class Where(NamedTuple):
    """The face of an answer, and the t with which it was found; on a polyhedron, the Hessian's factors on it."""

    face: Face
    t: jax.Array
    stiff: Any = None


def inside_of(problem: Problem, x: X, xi: Xi) -> Inside | None:
    return None if problem.constraint is None else Inside(problem.constraint, problem, x, xi)


class State(NamedTuple):
    """A point of the set, its gradient, the step t and |y - P(y - t grad)| / t."""

    y: Y
    slope: Y
    t: jax.Array
    norm: jax.Array
    error: jax.Array  # the last Newton step over y: what was left before it
    better: jax.Array
    iterations: jax.Array
    gradients: jax.Array
    products: jax.Array


def semismooth_newton(
    grad: Callable[[Y], Y],
    hessian: Callable[[Y], Product],
    inside: Inside,
    y: Y,
    *,
    iterations: int,
    linear: LinearSolver,
    tol: float | None = None,
) -> Solution:
    """The minimiser over a set; ``grad_norm`` is |y - P(y - t grad)| / t, which is |grad| inside the set.

    A step of Newton on the face of P(y - t grad), halved while that does not shrink; else y = P(y - t grad), for
    which it must where t is at most one over the largest curvature; t is halved where it is not. Stops after a
    Newton step that is ``tol`` of y, or where rounding lets nothing shrink.
    """

    def residual(y: Y, slope: Y, t: jax.Array) -> jax.Array:
        return tree.norm(tree.sub(y, inside.land(trees.add_scale(y, -t, slope))[0])) / t

    def step(state: State) -> State:
        y, slope, t, norm, *_ = state
        point, face = inside.land(trees.add_scale(y, -t, slope))
        product = hessian(y)
        direction, taken = newton_direction(inside, product, face, tree.sub(y, point), t, linear)

        def try_step(search: tuple[Any, ...]) -> tuple[Any, ...]:
            n, *_ = search
            length = jnp.where(n > HALVINGS, 0, jnp.exp2(-n.astype(t.dtype)))
            shorter = inside.land(trees.add_scale(y, length, direction))[0]
            new = tree.where(n > HALVINGS, point, shorter)
            new_slope = grad(new)
            return n + 1, new, new_slope, residual(new, new_slope, t)

        def too_long(search: tuple[Any, ...]) -> jax.Array:
            n, *_, new_norm = search
            return ~(new_norm < norm * (1 - 0.1 * jnp.exp2(1 - n.astype(t.dtype)))) & (n <= HALVINGS + 1)

        untried = (jnp.zeros((), jnp.int32), y, slope, norm)
        n, new, new_slope, new_norm = lax.while_loop(too_long, try_step, untried)
        moved, turned = tree.norm(tree.sub(new, y)), tree.norm(tree.sub(new_slope, slope))
        by_gradient = n > HALVINGS + 1
        steep = by_gradient & (turned * t > moved) & (moved > 0)  # the curvature there is above 1 / t
        better = new_norm < norm
        taken_y, taken_slope = tree.where(better, (new, new_slope), (y, slope))
        shorter_t = jnp.where(steep, t / 2, t)
        left = jnp.where(steep, residual(taken_y, taken_slope, shorter_t), jnp.minimum(new_norm, norm))
        small = tree.norm(direction) / jnp.maximum(tree.norm(y), jnp.finfo(t.dtype).tiny)
        count = state.iterations + 1, state.gradients + n, state.products + taken + 1
        return State(taken_y, taken_slope, shorter_t, left, small, better | steep, *count)

    y = inside.land(y)[0]
    slope = grad(y)
    t = first_step(hessian(y), slope)
    start = residual(y, slope, t)
    goal = default_tol(start.dtype) if tol is None else tol
    zero = jnp.zeros((), jnp.int32)
    state = State(y, slope, t, start, jnp.ones_like(start), jnp.ones((), bool), zero, zero + 1, zero + 1)
    going_on = lambda s: s.better & (s.norm > 0) & (s.error > goal) & (s.iterations < iterations)
    end = lax.while_loop(going_on, step, state)
    return answer_of(end, inside)


def answer_of(end: State, inside: Inside) -> Solution:
    """Where the steps ended, on which face, and what they left.

    The last step is no measure of that where it ended at rest: from y = 0 it is infinite against y.
    """
    face = inside.land(trees.add_scale(end.y, -end.t, end.slope))[1]
    rounding = 100 * float(jnp.finfo(end.norm.dtype).eps)
    still = end.norm <= rounding * (tree.norm(end.slope) + tree.norm(end.y) / end.t)
    error = jnp.where(still, jnp.minimum(end.error, rounding), end.error)
    counts = end.iterations, end.gradients, end.products
    return Solution(end.y, end.norm, error, error <= UNSOLVED, *counts, where=Where(face, end.t))


def newton_direction(
    inside: Inside, hessian: Product, face: Face, away: Y, t: jax.Array, linear: LinearSolver
) -> tuple[Y, Any]:
    """The step d that solves F + DF d = 0 for F(y) = y - P(y - t grad g), ``away`` = F(y).

    Across the face it goes to the face; along it, (T H T + bend / t) d = -(1 / t + bend / t) T F - T H d_across.
    """
    constraint = inside.constraint
    kept = constraint.tangent(face, away)
    across = tree.sub(kept, away)
    pull = trees.scale(-1 / t, tree.add(kept, constraint.bend(face, kept)))
    right = constraint.tangent(face, tree.sub(pull, hessian(across)))
    along, taken = linear(inside.system(hessian, face, t), right)
    return tree.add(across, constraint.tangent(face, along)), taken


def first_step(hessian: Product, slope: Y) -> jax.Array:
    """One over the curvature along the gradient: at least one over the largest; 1 where the gradient is zero."""
    square = tree.norm(slope, squared=True)
    curved = tree.vdot(slope, hessian(slope))
    return jnp.where((square > 0) & (curved > 0), square / jnp.where(curved > 0, curved, 1), 1)
