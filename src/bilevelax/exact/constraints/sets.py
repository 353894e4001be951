"""Box, simplex, ball and affine space: nearest points in closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from optax import tree

from bilevelax.core.problem import PyTree, X, Xi, Y
from bilevelax.exact.constraints.constraint import Constraint, Look, registered
from bilevelax.exact.constraints.values import Value, spread, value
from bilevelax.exact.elimination import apply, factor


def _least(values: jax.Array, among: jax.Array) -> jax.Array:
    return jnp.min(jnp.where(among, values, jnp.inf))


class Bounds(NamedTuple):
    lower: jax.Array
    upper: jax.Array


class Side(NamedTuple):
    """Coordinates at their upper and lower bounds; a coordinate without room is at both."""

    upper: jax.Array
    lower: jax.Array

    @property
    def free(self) -> jax.Array:
        return ~(self.upper | self.lower)


@registered
class Box(Constraint):
    """lower <= y <= upper, coordinate by coordinate."""

    lower: Value
    upper: Value

    def at(self, x: X, xi: Xi, like: Y) -> Bounds:
        return Bounds(
            *(spread(name, "box", getattr(self, name).at(x, xi), like) for name in ("lower", "upper")),
        )

    def nearest(self, z: jax.Array, at: Bounds) -> tuple[jax.Array, Side]:
        lower, upper = at
        y = jnp.where(jnp.all(lower <= upper), jnp.clip(z, lower, upper), jnp.nan)
        fixed = lower == upper
        return y, Side((z > upper) | fixed, (z < lower) & ~fixed)

    def along(self, face: Side, r: jax.Array) -> jax.Array:
        return jnp.where(face.free, r, 0)

    def displaced(self, face: Side, at: Bounds, y: jax.Array, r: jax.Array, rest: jax.Array, t: Any) -> jax.Array:
        bound = jnp.where(face.upper, at.upper, jnp.where(face.lower, at.lower, 0))
        return jnp.sum(jnp.where(face.free, 0, rest) * bound)

    def look(self, face: Side, at: Bounds, y: jax.Array, force: jax.Array) -> Look:
        held = ~face.free & (at.lower < at.upper)
        room = jnp.minimum(at.upper - y, y - at.lower)
        return Look(jnp.sum(~face.free), _least(jnp.abs(force), held), _least(room, face.free), jnp.ones((), y.dtype))


def box(lower: Any = -np.inf, upper: Any = np.inf) -> Box:
    """lower <= y <= upper: numbers, arrays or trees like y, or functions of (x, xi) that return them."""
    bounds = value("lower", "box", lower), value("upper", "box", upper)
    if all(each.function is None for each in bounds):
        try:
            crossed = jax.tree.map(lambda a, b: bool(np.any(a > b)), bounds[0].array, bounds[1].array)
        except ValueError:
            crossed = False  # one number against a tree: seen with y
        if any(jax.tree.leaves(crossed)):
            raise ValueError(f"`lower` of box must not exceed `upper`: no answer is left. Got {lower!r} and {upper!r}.")
    return Box(*bounds)


def nonnegative() -> Box:
    """y >= 0."""
    return box(0.0)


class Support(NamedTuple):
    """The coordinates that are not zero."""

    positive: jax.Array


@registered
class Simplex(Constraint):
    """y >= 0 with sum ``total``."""

    total: Value

    def at(self, x: X, xi: Xi, like: Y) -> jax.Array:
        total = self.total.at(x, xi)
        if jnp.shape(total):
            raise ValueError(f"`total` of simplex must be one number. Got shape {jnp.shape(total)}.")
        return jnp.asarray(total, tree.dtype(like, "highest"))

    def nearest(self, z: jax.Array, at: jax.Array) -> tuple[jax.Array, Support]:
        """z - tau where that is positive, tau such that the sum is right (found by sorting)."""
        ordered = -jnp.sort(-z)
        count = jnp.arange(1, len(z) + 1, dtype=z.dtype)
        levels = (jnp.cumsum(ordered) - at) / count
        last = jnp.sum(ordered > levels) - 1
        above = z - levels[jnp.maximum(last, 0)]
        return jnp.where(at > 0, jnp.maximum(above, 0), jnp.nan), Support(above > 0)

    def mean(self, face: Support, r: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(face.positive, r, 0)) / jnp.maximum(jnp.sum(face.positive, dtype=r.dtype), 1)

    def along(self, face: Support, r: jax.Array) -> jax.Array:
        return jnp.where(face.positive, r - self.mean(face, r), 0)

    def displaced(self, face: Support, at: jax.Array, y: jax.Array, r: jax.Array, rest: jax.Array, t: Any) -> jax.Array:
        return self.mean(face, rest) * at

    def look(self, face: Support, at: jax.Array, y: jax.Array, force: jax.Array) -> Look:
        zero = ~face.positive
        least = _least(self.mean(face, force) - force, zero)
        return Look(1 + jnp.sum(zero), least, _least(y, face.positive), jnp.ones((), y.dtype))


def simplex(total: Any = 1.0) -> Simplex:
    """y >= 0 whose coordinates sum to ``total``, a positive number or a function of (x, xi)."""
    made = value("total", "simplex", total)
    if made.function is None and not (np.ndim(made.array) == 0 and 0 < made.array < np.inf):
        raise ValueError(f"`total` of simplex must be a positive number, or a function of (x, xi). Got {total!r}.")
    return Simplex(made)


class Sphere(NamedTuple):
    centre: jax.Array
    radius: jax.Array


class Cap(NamedTuple):
    """Whether y lies on the sphere, the outward normal there, and how far outside z lay, in radii."""

    active: jax.Array
    normal: jax.Array
    excess: jax.Array


@registered
class Ball(Constraint):
    """|y - centre| <= radius."""

    radius: Value
    centre: Value

    def at(self, x: X, xi: Xi, like: Y) -> Sphere:
        radius = self.radius.at(x, xi)
        if jnp.shape(radius):
            raise ValueError(f"`radius` of ball must be one number. Got shape {jnp.shape(radius)}.")
        centre = spread("centre", "ball", self.centre.at(x, xi), like)
        return Sphere(centre, jnp.asarray(radius, centre.dtype))

    def nearest(self, z: jax.Array, at: Sphere) -> tuple[jax.Array, Cap]:
        away = z - at.centre
        square = jnp.sum(away**2)
        active = square > at.radius**2
        length = jnp.sqrt(jnp.where(active, square, 1))
        normal = away / length
        y = jnp.where(active, at.centre + at.radius * normal, z)
        return jnp.where(at.radius > 0, y, jnp.nan), Cap(active, normal, jnp.where(active, length / at.radius - 1, 0))

    def along(self, face: Cap, r: jax.Array) -> jax.Array:
        return r - jnp.where(face.active, face.normal @ r, 0) * face.normal

    def bent(self, face: Cap, r: jax.Array) -> jax.Array:
        return face.excess * self.along(face, r)

    def displaced(self, face: Cap, at: Sphere, y: jax.Array, r: jax.Array, rest: jax.Array, t: Any) -> jax.Array:
        away, length = y - at.centre, jax.lax.stop_gradient(at.radius)
        turned = away @ self.bent(face, r) / t
        held = (face.normal @ rest) / length * (jnp.sum(away**2) - at.radius**2) / 2
        return jnp.where(face.active, -turned - held, 0)

    def look(self, face: Cap, at: Sphere, y: jax.Array, force: jax.Array) -> Look:
        room = at.radius - jnp.sqrt(jnp.sum((y - at.centre) ** 2))
        multiplier = jnp.where(face.active, jnp.abs(face.normal @ force), jnp.inf)
        slack = jnp.where(face.active, jnp.inf, room)
        return Look(face.active.astype(int), multiplier, slack, jnp.ones((), y.dtype))


def ball(radius: Any = 1.0, centre: Any = 0.0) -> Ball:
    """The points at most ``radius`` from ``centre``; both may be functions of (x, xi)."""
    made = value("radius", "ball", radius)
    if made.function is None and not (np.ndim(made.array) == 0 and 0 < made.array < np.inf):
        raise ValueError(f"`radius` of ball must be a positive number, or a function of (x, xi). Got {radius!r}.")
    return Ball(made, value("centre", "ball", centre))


class Plane(NamedTuple):
    """A y = b."""

    A: jax.Array
    b: jax.Array


class Normals(NamedTuple):
    """Normals of a face, and the inverse of their Gram matrix."""

    A: jax.Array
    inverse: jax.Array


def matrix_at(owner: str, A: PyTree, b: PyTree, like: Y) -> Plane:
    """A and b with shapes that fit y, or one sentence."""
    d, dtype = tree.size(like), tree.dtype(like, "highest")
    A = jnp.asarray(A, dtype)
    if A.ndim != 2 or A.shape[1] != d:
        raise ValueError(f"`A` of {owner} must have one column for each of the {d} coordinates of y. Got {A.shape}.")
    b = jnp.asarray(b, dtype)
    if b.ndim > 1 or b.shape not in ((), (A.shape[0],)):
        raise ValueError(f"`b` of {owner} must have one entry for each of the {A.shape[0]} rows of A. Got {b.shape}.")
    return Plane(A, jnp.broadcast_to(b, A.shape[:1]))


@registered
class Affine(Constraint):
    """A y = b."""

    A: Value
    b: Value

    def at(self, x: X, xi: Xi, like: Y) -> Plane:
        return matrix_at("affine", self.A.at(x, xi), self.b.at(x, xi), like)

    def nearest(self, z: jax.Array, at: Plane) -> tuple[jax.Array, Normals]:
        inverse = apply(factor(at.A @ at.A.T), jnp.eye(len(at.b), dtype=z.dtype))
        return z - at.A.T @ (inverse @ (at.A @ z - at.b)), Normals(at.A, inverse)

    def along(self, face: Normals, r: jax.Array) -> jax.Array:
        return r - face.A.T @ (face.inverse @ (face.A @ r))

    def displaced(self, face: Normals, at: Plane, y: jax.Array, r: jax.Array, rest: jax.Array, t: Any) -> jax.Array:
        return (face.inverse @ (face.A @ rest)) @ at.b

    def look(self, face: Normals, at: Plane, y: jax.Array, force: jax.Array) -> Look:
        nothing = jnp.asarray(jnp.inf, y.dtype)
        return Look(jnp.asarray(len(at.b)), nothing, nothing, jnp.ones((), y.dtype))


def affine(A: Any, b: Any) -> Affine:
    """A y = b. A is a matrix with independent rows, or a function of xi; b may be a function of (x, xi)."""
    made = value("A", "affine", A, ("xi",))
    if made.function is None:
        if np.ndim(made.array) != 2:
            raise ValueError(f"`A` of affine must be a matrix. Got {np.ndim(made.array)} dimensions.")
        if np.linalg.matrix_rank(made.array) < len(made.array):
            raise ValueError(
                f"`A` of affine must have independent rows. Got rank {np.linalg.matrix_rank(made.array)} with "
                f"{len(made.array)} rows; leave out those that follow from others."
            )
    return Affine(made, value("b", "affine", b))
