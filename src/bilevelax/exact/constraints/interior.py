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
    slack: jax.Array
    multiplier: jax.Array
    gradient: jax.Array
    iterations: jax.Array
    gradients: jax.Array  # how many were taken
    gap: jax.Array  # the largest of their residuals, relative
    stuck: jax.Array  # rounding lets it shrink no more
    feasible: jax.Array


class Residuals(NamedTuple):
    """Of the conditions grad g + A' lambda = 0, A y + s = b, s lambda = 0."""

    dual: jax.Array
    primal: jax.Array
    product: jax.Array


def residuals(rows: Rows, point: Point) -> Residuals:
    slack = jnp.where(rows.equal, 0, point.slack)
    dual = point.gradient + rows.A.T @ point.multiplier
    return Residuals(dual, rows.A @ point.y + slack - rows.b, slack * point.multiplier)


def measured(rows: Rows, point: Point, tol: float) -> Point:
    """The point with its ``gap``, and whether it is feasible."""
    left = residuals(rows, point)
    off = jnp.where(rows.equal, 0, left.product)
    worst = jnp.maximum(jnp.max(jnp.abs(left.dual)), jnp.max(jnp.abs(off))) / (1 + jnp.max(jnp.abs(point.gradient)))
    primal = jnp.max(jnp.abs(left.primal)) / (1 + jnp.max(jnp.abs(point.y)))
    return point._replace(gap=jnp.maximum(worst, primal), feasible=primal <= jnp.sqrt(tol))


def begin(rows: Rows, y: jax.Array, gradient: jax.Array, tol: float) -> Point:
    """Any y, with slacks and multipliers of the size of what they stand for."""
    away = jnp.abs(rows.b - rows.A @ y)
    slack = jnp.maximum(away, jnp.maximum(jnp.mean(away), tol))
    scale = jnp.maximum(jnp.max(jnp.abs(gradient)), tol)
    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    start = Point(y, slack, jnp.where(rows.equal, 0, scale), gradient, zero, zero + 1, scale, no, no)
    return measured(rows, start, tol)


def interior_point(
    grad: Callable[[jax.Array], jax.Array],
    hessian: Callable[[jax.Array], jax.Array],
    rows: Rows,
    y: jax.Array,
    tol: float,
) -> Point:
    """argmin g on the rows, by Mehrotra's predictor and corrector; ``hessian(y)`` is a matrix.

    Slacks and multipliers stay positive and y may start anywhere. Rows of equality are kept by multipliers alone,
    with a small proximal term.
    """
    A, _, equal = rows
    soft = softness(y.dtype)
    free = (~equal).astype(y.dtype)
    mean = lambda a: jnp.sum(free * a) / jnp.maximum(jnp.sum(free), 1)

    def step(point: Point) -> Point:
        s, lam = jnp.where(equal, 1, point.slack), jnp.where(equal, 1, point.multiplier)
        left = residuals(rows, point)
        weight = jnp.where(equal, 1 / soft, lam / s)
        matrix = hessian(point.y) + A.T @ (weight[:, None] * A)
        factored = factor(matrix)

        def direction(product: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            pushed = jnp.where(equal, left.primal / soft, (lam * left.primal - product) / s)
            right = -left.dual - A.T @ pushed
            dy = apply(factored, right)
            dy = dy + apply(factored, right - matrix @ dy)  # weights of all sizes: once is not enough
            ds = jnp.where(equal, 0, -left.primal - A @ dy)
            return dy, ds, pushed + weight * (A @ dy)

        _, ds, dlam = direction(left.product)
        length = jnp.minimum(room(s, ds, equal), room(lam, dlam, equal))
        now = mean(s * lam)
        later = mean((s + length * ds) * (lam + length * dlam))
        centre = jnp.clip(later / jnp.where(now > 0, now, 1), 0, 1) ** 3 * now
        dy, ds, dlam = direction(left.product + jnp.where(equal, 0, ds * dlam) - centre)
        length = jnp.minimum(1, BACK * jnp.minimum(room(s, ds, equal), room(lam, dlam, equal)))
        new = measured(rows, taken(grad, point, (dy, ds, dlam), length, A), tol)
        worse = ~(new.gap < GROWS * point.gap) & ((point.gap < NEAR) | ~jnp.isfinite(new.gap))
        kept = jax.tree.map(lambda a, b: jnp.where(worse, a, b), point, new)
        return kept._replace(iterations=new.iterations, gradients=new.gradients, stuck=worse)

    def going_on(point: Point) -> jax.Array:
        return (point.gap > tol) & (point.iterations < ITERATIONS) & ~point.stuck

    return lax.while_loop(going_on, step, begin(rows, y, grad(y), tol))


def taken(
    grad: Callable[[jax.Array], jax.Array], point: Point, move: tuple[Any, ...], length: jax.Array, A: jax.Array
) -> Point:
    """The point after a step, halved while it makes grad g + A' lambda much larger: g need not be quadratic."""
    dy, ds, dlam = move
    before = jnp.max(jnp.abs(point.gradient + A.T @ point.multiplier))
    limit = jnp.maximum(before, jnp.max(jnp.abs(point.gradient)) / 10)

    def at(n: jax.Array) -> tuple[jax.Array, ...]:
        part = length * jnp.exp2(-n.astype(length.dtype))
        y, lam = point.y + part * dy, point.multiplier + part * dlam
        gradient = grad(y)
        return n + 1, y, point.slack + part * ds, lam, gradient, jnp.max(jnp.abs(gradient + A.T @ lam))

    def too_long(tried: tuple[jax.Array, ...]) -> jax.Array:
        n, *_, after = tried
        return ~(after <= limit) & (n < CUTS)

    n, y, s, lam, gradient, _ = lax.while_loop(too_long, lambda tried: at(tried[0]), at(jnp.zeros((), jnp.int32)))
    return point._replace(y=y, slack=s, multiplier=lam, gradient=gradient)._replace(
        iterations=point.iterations + 1, gradients=point.gradients + n
    )


def room(value: jax.Array, change: jax.Array, equal: jax.Array) -> jax.Array:
    """The longest step that leaves every value positive."""
    falls = (change < 0) & ~equal
    return jnp.min(jnp.where(falls, -value / jnp.where(falls, change, 1), jnp.inf), initial=1e10)


def softness(dtype: Any) -> float:
    """The proximal term of rows that hold with equality: 2e-5 in double, 8e-3 in single precision."""
    return float(jnp.finfo(dtype).eps) ** 0.3
