"""Damped Newton for a smooth strongly convex function, with the linear solver injected.

Every loop stops by itself: vectorised over contexts, the lanes stop together and each counts only
the calls that it needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevelax.core import trees
from bilevelax.core.problem import Y
from bilevelax.exact.linear import LinearSolver, Product, default_tol

HALVINGS = 20
ENOUGH = 1e-4  # share of the decrease that a straight line promises (Armijo)
FLATTER = 0.9  # share of the slope along a step that may be left, where rounding hides the decrease
ROUNDING = 10  # times eps |g|: differences of g below are not told from zero
UNSOLVED = 1e-2  # relative error of y from which on a problem counts as not solved

ValueAndGrad = Callable[[Y], tuple[jax.Array, Y]]


class Solution(NamedTuple):
    """A minimiser, and what it took."""

    y: Y
    grad_norm: jax.Array
    error: jax.Array  # the Newton step that is left, relative to y: in energy or in length, the larger
    solved: jax.Array  # False where g has no minimum that was found
    iterations: jax.Array
    gradients: jax.Array
    products: jax.Array
    memory: Any = None  # what the linear solver kept of the Hessian at y
    where: Any = None  # of a follower with a constraint: the face of its set that y lies on


class _State(NamedTuple):
    y: Y
    value: jax.Array
    slope: Y
    steps: tuple[jax.Array, jax.Array]  # the last one's squared energy and length
    error: jax.Array
    solved: jax.Array
    memory: Any
    done: jax.Array
    i: jax.Array
    gradients: jax.Array
    products: jax.Array


def newton(
    value_and_grad: ValueAndGrad,
    hessian: Callable[[Y], Product],
    y: Y,
    start: tuple[jax.Array, Y] | None = None,
    *,
    iterations: int,
    linear: LinearSolver,
    tol: float | None = None,
) -> Solution:
    """The minimiser of a function by damped Newton; ``hessian(y)`` multiplies by its second derivative at y.

    A step is halved until the function is finite and decreases: undamped Newton cycles on newsvendor
    losses and jumps over logarithmic barriers. Stops where the next step is ``tol`` of y, both in energy
    (s'Hs against y'Hy) and in length, by default 7e-5 in single and 4e-10 in double precision: that is
    the error of the answer, whatever the start and the units of y. Stops too where rounding allows no
    decrease. ``start`` is value and gradient at y where they are known; they are not counted again.
    """
    value, slope = value_and_grad(y) if start is None else start
    real = tree.norm(slope).dtype
    goal = default_tol(real) if tol is None else tol
    # A solver that keeps no matrix solves to 1 %, and a step it took is not looked at again: what is left is told by
    # that and by how steps shrank so far. The matrix of one that does is used again at y: the step left there is known.
    forgets, accuracy = linear.keeps(tree.size(y)) is None, linear.tol or goal
    blur = rounding_of(value)

    def step(at: _State) -> _State:
        product = hessian(at.y)
        memory, formed = linear.prepare(product, at.slope)
        raw, taken = linear.solve(memory, product, trees.scale(-1, at.slope))
        s, convex = downhill(raw, at.slope)
        convex &= getattr(memory, "positive", True)
        down = tree.vdot(s, at.slope)
        steps = -down, tree.norm(s, squared=True)
        rate = jnp.minimum(1, jnp.maximum(accuracy, shrinking(steps, at.steps))) if forgets else 1
        size, looked = relative_size(steps, at.y, product, goal / rate)
        small = size <= goal
        n, y, value, slope, fine = search(value_and_grad, at, s, down, small, blur)
        left = jnp.where(small | ~fine | (n > 1), size, size * rate)
        hidden = -down <= rounding_of(value).astype(real)
        solved = convex & ((left <= UNSOLVED) | hidden)
        products = at.products + formed + taken + looked
        done = small | ~fine | (left <= goal)
        return _State(y, value, slope, steps, left, solved, memory, done, at.i + 1, at.gradients + n, products)

    def going_on(at: _State) -> jax.Array:
        return ~at.done & (at.i < iterations)

    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    shapes = jax.eval_shape(lambda: linear.prepare(lambda r: r, slope)[0])  # of any Hessian's
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    taken = jnp.asarray(start is None, jnp.int32)
    none = jnp.zeros((), real)
    rest = in_each_lane(value, ((none, none), none, no, nothing, no, zero, taken, zero))
    first = _State(y, value, slope, *rest)
    end = lax.while_loop(going_on, step, first)
    return Solution(end.y, tree.norm(end.slope), end.error, end.solved, end.i, end.gradients, end.products, end.memory)


def in_each_lane(like: jax.Array, constants: Any) -> Any:
    """The same numbers, one a lane of ``like`` under vmap: a loop is batched once, not until its carry settles."""
    return jax.tree.map(lambda a: jnp.where(jnp.isnan(like), a, a), constants)


def rounding_of(value: jax.Array) -> jax.Array:
    """Differences from this value that cannot be told from zero."""
    return ROUNDING * float(jnp.finfo(value.dtype).eps) * jnp.abs(value)


def search(
    value_and_grad: ValueAndGrad, at: _State, s: Y, down: jax.Array, small: jax.Array, blur: jax.Array
) -> tuple[Any, ...]:
    """(tries, y, value, slope, found?): s halved until the function is finite and falls enough along it.

    Where rounding hides the fall, ``blur`` at the start or what the value now allows, the slope along s must shrink
    instead. A step that is ``small`` is not taken: nothing is tried.
    """
    guard = jnp.maximum(blur, rounding_of(at.value))

    def try_step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        n, *_ = carry
        t = jnp.exp2(-n.astype(down.dtype))
        new = trees.add_scale(at.y, t, s)
        value, slope = value_and_grad(new)
        along = tree.vdot(s, slope)
        falls = value <= at.value + (ENOUGH * t * down).astype(value.dtype)
        flatter = (value <= at.value + guard) & (jnp.abs(along) <= FLATTER * jnp.abs(down))
        return n + 1, new, value, slope, jnp.isfinite(value) & jnp.isfinite(along) & (falls | flatter)

    def too_long(carry: tuple[Any, ...]) -> jax.Array:
        n, *_, fine = carry
        return ~fine & (n <= HALVINGS)

    untried = (in_each_lane(at.value, jnp.zeros((), jnp.int32)), at.y, at.value, at.slope, small)
    n, *new, fine = lax.while_loop(too_long, try_step, untried)
    return n, *tree.where(fine, tuple(new), (at.y, at.value, at.slope)), fine


def downhill(s: Y, slope: Y) -> tuple[Y, jax.Array]:
    """A step as it is where g falls along it, else one of its length down the slope; and whether it was as it is."""
    down, steep = tree.vdot(s, slope), tree.norm(slope)
    length = tree.norm(s)
    finite = jnp.isfinite(down) & jnp.isfinite(length)
    other = trees.scale(-jnp.where(finite, length, 1) / jnp.where(steep > 0, steep, 1), slope)
    convex = finite & ((down < 0) | (steep == 0))
    return tree.where(convex, s, other), convex


Squares = tuple[jax.Array, jax.Array]  # of a step: in energy s'Hs, and in length


def shrinking(new: Squares, old: Squares) -> jax.Array:
    """By how much the next step will be smaller than this one, if Newton's steps go on to shrink quadratically."""
    ratio = lambda a, b: jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 1)
    return jnp.maximum(*map(ratio, new, old))


def relative_size(step: Squares, y: Y, product: Product, goal: Any) -> tuple[jax.Array, jax.Array]:
    """|s| / |y| in length or, if that reaches the goal, in energy where that is larger; and the products it took.

    Coordinates of any unit show in one or the other.
    """
    energy, square = step
    ratio = lambda a, b: jnp.sqrt(jnp.maximum(a, 0) / jnp.maximum(b, jnp.finfo(square.dtype).tiny))
    length = ratio(square, tree.norm(y, squared=True))
    # a loop of one turn or none: under vmap, a condition would take the product in every lane and step
    look = lambda carry: (jnp.maximum(length, ratio(energy, tree.vdot(y, product(y)))), carry[1] + 1)
    near = lambda carry: (length <= goal) & (carry[1] == 0)
    return lax.while_loop(near, look, (length, in_each_lane(length, jnp.zeros((), jnp.int32))))
