"""A y <= b: nearest points by an interior point method, then exactly on the face that it found."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.problem import Problem, X, Xi, Y, static
from bilevelax.exact.constraints.constraint import Constraint, Look, registered
from bilevelax.exact.constraints.facets import Facet, Stiff, active_rows, facet_of, solve_held, split
from bilevelax.exact.constraints.interior import Rows, interior_point, normal_at, stiffness
from bilevelax.exact.constraints.sets import matrix_at
from bilevelax.exact.constraints.values import Value, takes, value
from bilevelax.exact.elimination import factor

ROUNDS = 10  # of correcting the active rows


class Minimum(NamedTuple):
    """The minimiser on a polyhedron and its face."""

    y: jax.Array
    face: Facet
    stiff: Stiff  # of the Hessian at y
    gap: jax.Array  # largest residual of the conditions of optimality, relative
    feasible: jax.Array
    solved: jax.Array
    iterations: jax.Array
    gradients: jax.Array


class Guess(NamedTuple):
    """Which rows are active, and what follows from that."""

    active: jax.Array
    held: jax.Array  # those that y was found with
    y: jax.Array
    nu: jax.Array  # their multipliers
    stiff: Stiff
    gap: jax.Array
    wrong: jax.Array
    rounds: jax.Array


def minimise(grad: Any, hessian: Any, rows: Rows, y: jax.Array) -> Minimum:
    """argmin g on the rows: an interior point method finds the active rows, Newton's method on their face the answer.

    A row whose multiplier comes out negative is let go, one that is violated is taken in, and all is done again: near
    the answer, that ends after a round or two, also where some constraints are hardly active.
    """
    eps = float(jnp.finfo(y.dtype).eps)
    tol = eps**0.45
    point = interior_point(grad, hessian, rows, y, tol)
    size = 1 + jnp.max(jnp.abs(point.gradient))
    small = 1e3 * eps * jnp.maximum(1, jnp.max(jnp.abs(point.y)))

    def settle(guess: Guess) -> Guess:
        J, W = active_rows(rows, guess.active), hessian(guess.y)
        weight = stiffness(W)
        stiff = Stiff(factor(W + weight * (J.T @ J)), weight)
        over = jnp.where(guess.active, rows.A @ guess.y - rows.b, 0)
        step = solve_held(J, stiff, lambda d: W @ d, -grad(guess.y), over)
        y, nu = guess.y + step.d, step.nu
        over = rows.A @ y - rows.b
        active = rows.equal | jnp.where(guess.active, nu > -small * size, over > small)
        push = jnp.max(jnp.abs(grad(y) + J.T @ nu)) / size
        broken = jnp.max(jnp.where(rows.equal, jnp.abs(over), over), initial=0)
        negative = jnp.max(jnp.where(rows.equal, 0, -nu), initial=0) / size
        gap = jnp.maximum(jnp.maximum(push, broken), negative)
        curved = (gap > small) & (gap < guess.gap / 2)  # g is not quadratic: another step
        wrong = jnp.any(active != guess.active) | curved
        return Guess(active, guess.active, y, nu, stiff, gap, wrong, guess.rounds + 1)

    held = rows.equal | (point.multiplier * (1 + jnp.max(jnp.abs(point.y))) > point.slack * size)
    shapes = jax.eval_shape(lambda: Stiff(factor(hessian(y)), y[0]))
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    far = jnp.full((), jnp.inf, y.dtype)
    first = Guess(held, held, point.y, point.multiplier, nothing, far, jnp.ones((), bool), jnp.zeros((), jnp.int32))
    last = lax.while_loop(lambda g: g.wrong & (g.rounds < ROUNDS), settle, first)
    better = jnp.isfinite(last.gap) & (last.gap <= jnp.maximum(point.gap, small))
    best = jnp.where(better, last.y, point.y)
    gap = jnp.where(better, last.gap, point.gap)
    counts = point.iterations + last.rounds, point.gradients + 2 * last.rounds
    feasible = point.feasible | (gap <= 10 * tol)
    face = facet_of(rows, last.held, last.nu)
    return Minimum(best, face, last.stiff, gap, feasible, gap <= 10 * tol, *counts)


def smoothed(grad: Any, hessian: Any, rows: Rows, y: jax.Array, kappa: float) -> Minimum:
    """argmin g - kappa sum log(b - A y): s lambda = kappa for every inequality, so that every answer has a derivative.

    Its Hessian is that of g and A' diag(lambda / s) A.
    """
    tol = float(jnp.finfo(y.dtype).eps) ** 0.75
    point = interior_point(grad, hessian, rows, y, tol, kappa)
    normal = normal_at(rows, hessian(point.y), point.slack, point.multiplier)
    pull = jnp.where(rows.equal, 0, normal.weight)
    stiff = Stiff(normal.factored, stiffness(normal.hessian), jnp.sqrt(pull)[:, None] * rows.A)
    active = rows.equal | (point.multiplier > point.slack)
    face = facet_of(rows, rows.equal, point.multiplier)._replace(active=active, pull=pull)
    solved = point.gap <= 1e3 * tol
    return Minimum(point.y, face, stiff, point.gap, point.feasible, solved, point.iterations, point.gradients)


@program()
def nearest_on(rows: Rows, z: jax.Array) -> tuple[jax.Array, Facet]:
    """The nearest point to z and its face, traced once for the dozens of places of a program that ask for it."""
    identity = jnp.eye(len(z), dtype=z.dtype)
    found = minimise(lambda y: y - z, lambda y: identity, rows, z)
    return jnp.where(found.feasible, found.y, jnp.nan), found.face


@registered
class Polyhedron(Constraint):
    """A y <= b, the first ``equalities`` rows with equality."""

    A: Value
    b: Value
    equalities: int = static()
    smoothing: float = static()

    def at(self, x: X, xi: Xi, like: Y) -> Rows:
        A, b = matrix_at("polyhedron", self.A.at(x, xi), self.b.at(x, xi), like)
        length = jnp.sqrt(jnp.sum(A**2, axis=1))
        length = jnp.where(length > 0, length, 1)
        return Rows(A / length[:, None], b / length, jnp.arange(len(b)) < self.equalities)

    def bytes(self, x: X, xi: Xi, like: Y) -> int:
        """What a step of `minimise` works with: rows with and without weights, the Hessian, the matrix, its factors."""
        A = jax.eval_shape(lambda: self.at(x, xi, like)).A
        return int(A.dtype.itemsize * A.shape[1] * (2 * A.shape[0] + 3 * A.shape[1]))

    def nearest(self, z: jax.Array, at: Rows) -> tuple[jax.Array, Facet]:
        return nearest_on(at, z)

    def along(self, face: Facet, r: jax.Array) -> jax.Array:
        return split(face, r).d

    def displaced(self, face: Facet, at: Rows, y: jax.Array, r: jax.Array, rest: jax.Array, t: Any) -> jax.Array:
        A = lax.stop_gradient(at.A)
        nu = jnp.zeros(len(A), A.dtype) if face.pull is None else face.pull * (A @ r)
        nu = nu + split(face, rest - A.T @ nu).nu
        turned = face.multiplier @ (at.A @ r) / t  # zero itself, but not its derivative where A moves
        return -turned - nu @ (at.A @ y - at.b)

    def look(self, face: Facet, at: Rows, y: jax.Array, force: jax.Array) -> Look:
        active = jnp.sum(face.active)
        if face.pull is not None:  # nothing can be at a kink
            nothing = jnp.asarray(jnp.inf, y.dtype)
            return Look(active, nothing, nothing, jnp.ones((), y.dtype))
        room = at.b - at.A @ y
        least = jnp.min(jnp.where(face.active & ~at.equal, split(face, force).nu, jnp.inf))
        rank = len(y) - jnp.trace(jax.vmap(lambda r: self.along(face, r))(jnp.eye(len(y), dtype=y.dtype)))
        return Look(
            active,
            least,
            jnp.min(jnp.where(face.active, jnp.inf, room)),
            jnp.where(active > 0, rank / jnp.maximum(active, 1).astype(y.dtype), 1),
        )

    def restricted(self, problem: Problem, face: Facet, y: Y) -> Problem:
        if self.smoothing:
            raise ValueError(
                "`smoothing` of polyhedron is for answers that are solved: by saa, antithetic_mlmc, respond, evaluate, "
                f"solve. Steps that are projected have none. Got {self.smoothing:g}; leave it out here."
            )
        return super().restricted(problem, face, y)

    def minimise(self, grad: Any, hessian: Any, at: Rows, y: jax.Array) -> Minimum:
        """argmin g on the set directly, without nearest points."""
        if self.smoothing:
            return smoothed(grad, hessian, at, y, self.smoothing)
        return minimise(grad, hessian, at, y)


def polyhedron(A: Any, b: Any, equalities: int = 0, smoothing: float = 0.0) -> Polyhedron:
    """A y <= b, row by row; the first ``equalities`` rows hold with equality.

    A is a matrix or a function of xi or of (x, xi), such as prices in a budget; b a vector or a function of (x, xi).

    Args:
        equalities: how many of the first rows hold with equality.
        smoothing: kappa > 0 adds -kappa log of every slack to g, so that y* has a derivative also where a
            multiplier and its slack are both zero; answers are then off by up to sqrt(kappa).
    """
    of = ("xi",) if not callable(A) or takes(A, 1) else ("x", "xi")
    matrix, right = value("A", "polyhedron", A, of), value("b", "polyhedron", b)
    require_integer("equalities", "polyhedron", equalities, 0)
    if smoothing != 0:
        require_positive("smoothing", "polyhedron", smoothing)
    if matrix.function is None:
        if np.ndim(matrix.array) != 2 or 0 in np.shape(matrix.array):
            raise ValueError(f"`A` of polyhedron must be a matrix with rows and columns. Got shape {np.shape(A)}.")
        if equalities > len(matrix.array):
            raise ValueError(
                f"`equalities` of polyhedron must not exceed the {len(matrix.array)} rows of A. Got {equalities}."
            )
        if right.function is None and np.shape(right.array) not in ((), (len(matrix.array),)):
            raise ValueError(
                f"`b` of polyhedron must have one entry for each of the {len(matrix.array)} rows of A. "
                f"Got shape {np.shape(right.array)}."
            )
    return Polyhedron(matrix, right, equalities, float(smoothing))
