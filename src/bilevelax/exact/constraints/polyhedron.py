"""A y <= b: nearest points by an interior point method, then exactly on the face that it found."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevelax.base.errors import require_integer
from bilevelax.core.problem import X, Xi, Y, static
from bilevelax.exact.constraints.constraint import Constraint, Look, registered
from bilevelax.exact.constraints.interior import Rows, interior_point, softness
from bilevelax.exact.constraints.sets import matrix_at
from bilevelax.exact.constraints.values import Value, takes, value
from bilevelax.exact.elimination import apply, factor

ROUNDS = 10  # of correcting the active rows


class Facet(NamedTuple):
    """The active rows, the projector onto what they leave free, and (I + J'J / soft)^-1."""

    J: jax.Array  # rows of A; zero where not active
    active: jax.Array
    projector: jax.Array
    across: jax.Array
    multiplier: jax.Array


PASSES = 3  # each leaves about ``soft`` of the error


def facet_of(rows: Rows, active: jax.Array, multiplier: jax.Array) -> Facet:
    """The face of some active rows J, dependent or not.

    (I + J'J / soft)^-1 is the projector onto the null space of J up to ``soft``; each T -> 3 T^2 - 2 T^3 squares that.
    """
    J = jnp.where(active[:, None], rows.A, 0)
    identity = jnp.eye(J.shape[1], dtype=J.dtype)
    across = apply(factor(identity + J.T @ J / softness(J.dtype)), identity)

    def purify(_: Any, T: jax.Array) -> jax.Array:
        square = T @ T
        return 3 * square - 2 * square @ T

    return Facet(J, active, lax.fori_loop(0, PASSES, purify, across), across, multiplier)


def coefficients(face: Facet, force: jax.Array) -> jax.Array:
    """nu with J' nu = force, as nearly as can be; zero for rows that are not active."""
    J, soft = face.J, softness(force.dtype)
    better = lambda _, nu: nu + J @ (face.across @ (force - J.T @ nu)) / soft
    return lax.fori_loop(0, PASSES, better, jnp.zeros(len(J), J.dtype))


def step_across(face: Facet, over: jax.Array) -> jax.Array:
    """The shortest d with J d = -over."""
    J, soft = face.J, softness(over.dtype)
    better = lambda _, d: d - face.across @ (J.T @ (over + J @ d)) / soft
    return lax.fori_loop(0, PASSES, better, jnp.zeros(J.shape[1], J.dtype))


class Minimum(NamedTuple):
    """The minimiser on a polyhedron and its face."""

    y: jax.Array
    face: Facet
    gap: jax.Array  # largest residual of the conditions of optimality, relative
    feasible: jax.Array
    solved: jax.Array
    iterations: jax.Array
    gradients: jax.Array


class Guess(NamedTuple):
    """Which rows are active, and what follows from that."""

    active: jax.Array
    y: jax.Array
    face: Facet
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
        face = facet_of(rows, guess.active, point.multiplier)
        move = lambda _, y: y + on_face(face, grad(y), hessian(y), rows, y)
        y = lax.fori_loop(0, 2, move, guess.y)
        slope = grad(y)
        nu = coefficients(face, -slope)
        over = rows.A @ y - rows.b
        active = rows.equal | jnp.where(guess.active, nu > -small * size, over > small)
        push = jnp.max(jnp.abs(slope + rows.A.T @ nu)) / size
        broken = jnp.max(jnp.where(rows.equal, jnp.abs(over), over), initial=0)
        negative = jnp.max(jnp.where(rows.equal, 0, -nu), initial=0) / size
        gap = jnp.maximum(jnp.maximum(push, broken), negative)
        face = face._replace(multiplier=nu)
        return Guess(active, y, face, gap, jnp.any(active != guess.active), guess.rounds + 1)

    held = rows.equal | (point.multiplier * (1 + jnp.max(jnp.abs(point.y))) > point.slack * size)
    shapes = jax.eval_shape(lambda: facet_of(rows, held, point.multiplier))
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    first = Guess(held, point.y, nothing, point.gap, jnp.ones((), bool), jnp.zeros((), jnp.int32))
    last = lax.while_loop(lambda g: g.wrong & (g.rounds < ROUNDS), settle, first)
    better = jnp.isfinite(last.gap) & (last.gap <= jnp.maximum(point.gap, small))
    best = jnp.where(better, last.y, point.y)
    gap = jnp.where(better, last.gap, point.gap)
    counts = point.iterations, point.gradients + 3 * last.rounds
    feasible = point.feasible | (gap <= 10 * tol)
    return Minimum(best, last.face, gap, feasible, gap <= 10 * tol, *counts)


def on_face(face: Facet, slope: jax.Array, hessian: jax.Array, rows: Rows, y: jax.Array) -> jax.Array:
    """Newton's step to the minimiser on the affine hull of a face."""
    T = face.projector
    across = step_across(face, jnp.where(face.active, rows.A @ y - rows.b, 0))
    system = T @ hessian @ T + jnp.eye(len(y), dtype=y.dtype) - T
    return across + T @ apply(factor(system), -T @ (slope + hessian @ across))


@registered
class Polyhedron(Constraint):
    """A y <= b, the first ``equalities`` rows with equality."""

    A: Value
    b: Value
    equalities: int = static()

    def at(self, x: X, xi: Xi, like: Y) -> Rows:
        A, b = matrix_at("polyhedron", self.A.at(x, xi), self.b.at(x, xi), like)
        length = jnp.sqrt(jnp.sum(A**2, axis=1))
        length = jnp.where(length > 0, length, 1)
        return Rows(A / length[:, None], b / length, jnp.arange(len(b)) < self.equalities)

    def nearest(self, z: jax.Array, at: Rows) -> tuple[jax.Array, Facet]:
        identity = jnp.eye(len(z), dtype=z.dtype)
        found = minimise(lambda y: y - z, lambda y: identity, at, z)
        return jnp.where(found.feasible, found.y, jnp.nan), found.face

    def along(self, face: Facet, r: jax.Array) -> jax.Array:
        return face.projector @ r

    def displaced(self, face: Facet, at: Rows, y: jax.Array, r: jax.Array, rest: jax.Array, t: Any) -> jax.Array:
        turned = face.multiplier @ (at.A @ r) / t  # zero itself, but not its derivative where A moves
        return -turned - coefficients(face, rest) @ (at.A @ y - at.b)

    def look(self, face: Facet, at: Rows, y: jax.Array, force: jax.Array) -> Look:
        active = jnp.sum(face.active)
        room = at.b - at.A @ y
        least = jnp.min(jnp.where(face.active & ~at.equal, coefficients(face, force), jnp.inf))
        rank = len(y) - jnp.trace(face.projector)
        return Look(
            active,
            least,
            jnp.min(jnp.where(face.active, jnp.inf, room)),
            jnp.where(active > 0, rank / jnp.maximum(active, 1).astype(y.dtype), 1),
        )

    def minimise(self, grad: Any, hessian: Any, at: Rows, y: jax.Array) -> Minimum:
        """argmin g on the set directly, without nearest points."""
        return minimise(grad, hessian, at, y)


def polyhedron(A: Any, b: Any, equalities: int = 0) -> Polyhedron:
    """A y <= b, row by row; the first ``equalities`` rows hold with equality.

    A is a matrix or a function of xi or of (x, xi), such as prices in a budget; b a vector or a function of (x, xi).
    """
    of = ("xi",) if not callable(A) or takes(A, 1) else ("x", "xi")
    matrix, right = value("A", "polyhedron", A, of), value("b", "polyhedron", b)
    require_integer("equalities", "polyhedron", equalities, 0)
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
    return Polyhedron(matrix, right, equalities)
