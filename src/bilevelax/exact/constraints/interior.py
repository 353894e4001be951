"""A primal-dual interior point method for convex g on A y <= b, for many contexts at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bilevelax.exact.elimination import apply, factor

ITERATIONS = 60
BACK = 0.995  # of the way to where a slack or a multiplier becomes zero
NEAR = 1e-3  # residuals below which they shrink until rounding
GROWS = 10.0  # times that residuals may grow in a step before it counts as rounding
CUTS = 8  # times that a step is halved where the gradient grows


class Rows(NamedTuple):
    """A y <= b with rows of length one; y is equal to b in those of ``equal``."""

    A: jax.Array
    b: jax.Array
    equal: jax.Array


class Point(NamedTuple):
    """An answer, its slacks and multipliers, and whether they satisfy the conditions of optimality."""

    y: jax.Array
    image: jax.Array  # A y
    slack: jax.Array
    multiplier: jax.Array
    push: jax.Array  # A' lambda
    gradient: jax.Array
    iterations: jax.Array
    gradients: jax.Array  # how many were taken
    gap: jax.Array  # the largest of their residuals, relative
    stuck: jax.Array  # rounding lets it shrink no more
    feasible: jax.Array


class Residuals(NamedTuple):
    """Of the conditions grad g + A' lambda = 0, A y + s = b, s lambda = kappa."""

    dual: jax.Array
    primal: jax.Array
    product: jax.Array


def residuals(rows: Rows, point: Point, kappa: float) -> Residuals:
    slack = jnp.where(rows.equal, 0, point.slack)
    product = jnp.where(rows.equal, 0, slack * point.multiplier - kappa)
    return Residuals(point.gradient + point.push, point.image + slack - rows.b, product)


def measured(rows: Rows, point: Point, tol: float, kappa: float) -> Point:
    """The point with its ``gap``, and whether it is feasible."""
    left = residuals(rows, point, kappa)
    most = lambda a: jnp.max(jnp.abs(a))
    worst = jnp.maximum(most(left.dual), most(left.product)) / (1 + most(point.gradient))
    primal = most(left.primal) / (1 + most(point.y))
    return point._replace(gap=jnp.maximum(worst, primal), feasible=primal <= jnp.sqrt(tol))


def begin(rows: Rows, y: jax.Array, gradient: jax.Array, tol: float, kappa: float) -> Point:
    """Any y, with slacks and multipliers of the size of what they stand for."""
    image = rows.A @ y
    away = jnp.abs(rows.b - image)
    slack = jnp.maximum(away, jnp.maximum(jnp.mean(away), tol))
    scale = jnp.maximum(jnp.max(jnp.abs(gradient)), tol)
    multiplier = jnp.where(rows.equal, 0, scale)
    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    start = Point(y, image, slack, multiplier, rows.A.T @ multiplier, gradient, zero, zero + 1, scale, no, no)
    return measured(rows, start, tol, kappa)


class Normal(NamedTuple):
    """H + A' diag(weight) A, and its factors: what a step of the method solves with."""

    hessian: jax.Array
    weight: jax.Array
    matrix: jax.Array
    factored: Any


def normal_at(rows: Rows, hessian: jax.Array, slack: jax.Array, multiplier: jax.Array) -> Normal:
    """Rows of equality weigh as much as rounding allows; multipliers do the rest."""
    weight = jnp.where(rows.equal, stiffness(hessian), multiplier / jnp.where(rows.equal, 1, slack))
    matrix = hessian + rows.A.T @ (weight[:, None] * rows.A)
    return Normal(hessian, weight, matrix, factor(matrix))


def interior_point(
    grad: Callable[[jax.Array], jax.Array],
    hessian: Callable[[jax.Array], jax.Array],
    rows: Rows,
    y: jax.Array,
    tol: float,
    kappa: float = 0.0,
) -> Point:
    """argmin g on the rows, by Mehrotra's predictor and corrector; ``hessian(y)`` is a matrix.

    Slacks and multipliers stay positive and y may start anywhere. Rows of equality are kept by multipliers alone,
    with a small proximal term. With kappa, the minimiser of g - kappa sum log(b - A y).
    """
    A, _, equal = rows
    free = (~equal).astype(y.dtype)
    mean = lambda a: jnp.sum(free * a) / jnp.maximum(jnp.sum(free), 1)

    def step(point: Point) -> Point:
        s, lam = jnp.where(equal, 1, point.slack), jnp.where(equal, 1, point.multiplier)
        left = residuals(rows, point, kappa)
        normal = normal_at(rows, hessian(point.y), s, lam)

        def direction(product: jax.Array, passes: int) -> tuple[jax.Array, ...]:
            pushed = jnp.where(equal, normal.weight * left.primal, (lam * left.primal - product) / s)
            right = -left.dual - A.T @ pushed
            dy = apply(normal.factored, right)
            for _ in range(passes):  # weights of all sizes: once is not enough for the step that is taken
                dy = dy + apply(normal.factored, right - normal.matrix @ dy)
            moved = A @ dy
            return dy, moved, jnp.where(equal, 0, -left.primal - moved), pushed + normal.weight * moved

        _, _, ds, dlam = direction(left.product, 0)
        length = jnp.minimum(room(s, ds, equal), room(lam, dlam, equal))
        now = mean(s * lam)
        later = mean((s + length * ds) * (lam + length * dlam))
        centre = jnp.clip(later / jnp.where(now > 0, now, 1), 0, 1) ** 3 * now
        aim = jnp.where(equal, 0, ds * dlam - jnp.maximum(centre - kappa, 0))
        dy, moved, ds, dlam = direction(left.product + aim, 1)
        length = jnp.minimum(1, BACK * jnp.minimum(room(s, ds, equal), room(lam, dlam, equal)))
        new = taken(grad, point, (dy, moved, ds, dlam, A.T @ dlam), length)
        new = measured(rows, new, tol, kappa)
        worse = ~(new.gap < GROWS * point.gap) & ((point.gap < NEAR) | ~jnp.isfinite(new.gap))
        kept = jax.tree.map(lambda a, b: jnp.where(worse, a, b), point, new)
        return kept._replace(iterations=new.iterations, gradients=new.gradients, stuck=worse)

    def going_on(point: Point) -> jax.Array:
        return (point.gap > tol) & (point.iterations < ITERATIONS) & ~point.stuck

    return lax.while_loop(going_on, step, begin(rows, y, grad(y), tol, kappa))


def taken(
    grad: Callable[[jax.Array], jax.Array], point: Point, move: tuple[jax.Array, ...], length: jax.Array
) -> Point:
    """The point after a step, halved while it makes grad g + A' lambda much larger: g need not be quadratic."""
    dy, *others, dpush = move
    before = jnp.max(jnp.abs(point.gradient + point.push))
    limit = jnp.maximum(before, jnp.max(jnp.abs(point.gradient)) / 10)
    part = lambda n: length * jnp.exp2(-n.astype(length.dtype))

    def shorter(tried: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        n, _, _ = tried
        gradient = grad(point.y + part(n) * dy)
        return n + 1, gradient, jnp.max(jnp.abs(gradient + point.push + part(n) * dpush))

    def too_long(tried: tuple[Any, Any, Any]) -> Any:
        n, _, after = tried
        return ~(after <= limit) & (n < CUTS)

    untried = jnp.zeros((), jnp.int32), point.gradient, jnp.full_like(limit, jnp.inf)
    n, gradient, _ = lax.while_loop(too_long, shorter, untried)
    old = point.y, point.image, point.slack, point.multiplier, point.push
    y, image, slack, lam, push = (a + part(n - 1) * da for a, da in zip(old, (dy, *others, dpush), strict=True))
    counts = {"iterations": point.iterations + 1, "gradients": point.gradients + n}
    return point._replace(y=y, image=image, slack=slack, multiplier=lam, push=push, gradient=gradient, **counts)


def room(value: jax.Array, change: jax.Array, equal: jax.Array) -> jax.Array:
    """The longest step that leaves every value positive."""
    falls = (change < 0) & ~equal
    return jnp.min(jnp.where(falls, -value / jnp.where(falls, change, 1), jnp.inf), initial=1e10)


def softness(dtype: Any) -> float:
    """The proximal term of rows that hold with equality: 2e-5 in double, 8e-3 in single precision."""
    return float(jnp.finfo(dtype).eps) ** 0.3


def stiffness(hessian: jax.Array) -> jax.Array:
    """The weight of such rows, in the units of the Hessian."""
    size = jnp.mean(jnp.diagonal(hessian))
    return jnp.where(size > 0, size, 1) / softness(hessian.dtype)
