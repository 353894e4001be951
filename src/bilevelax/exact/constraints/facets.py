"""Faces of A y <= b: what active rows leave free, their multipliers, and systems on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bilevelax.exact.constraints.interior import Rows, softness
from bilevelax.exact.elimination import apply, factor

PASSES = 12  # at most; each leaves about ``soft`` of the error
SPLITS = 6  # passes where their number must be known, because g is differentiated along a face


class Facet(NamedTuple):
    """The active rows, dependent or not, and the factors of I + J'J / soft."""

    J: jax.Array  # rows of A; zero where not active
    active: jax.Array
    multiplier: jax.Array
    across: Any
    pull: jax.Array | None = None  # with smoothing: lambda / s of every inequality, which then holds nothing by itself


class Stiff(NamedTuple):
    """W with rows J that weigh ``weight``: the factors of W + weight J'J."""

    factored: Any
    weight: jax.Array
    barrier: jax.Array | None = None  # with smoothing, W is the Hessian of g and B'B


def active_rows(rows: Rows, active: jax.Array) -> jax.Array:
    return jnp.where(active[:, None], rows.A, 0)


def facet_of(rows: Rows, active: jax.Array, multiplier: jax.Array) -> Facet:
    J = active_rows(rows, active)
    across = factor(jnp.eye(J.shape[1], dtype=J.dtype) + J.T @ J / softness(J.dtype))
    return Facet(J, active, multiplier, across)


class Held(NamedTuple):
    """The solution of W d + J' nu = right, J d = -over, and how many products with W it took."""

    d: jax.Array
    nu: jax.Array
    passes: jax.Array


class _Pass(NamedTuple):
    d: jax.Array
    reached: jax.Array  # J d
    nu: jax.Array
    size: jax.Array
    better: jax.Array
    n: jax.Array


def solve_held(
    J: jax.Array,
    stiff: Stiff,
    W: Callable[[jax.Array], jax.Array],
    right: jax.Array,
    over: Any = 0.0,
    passes: int | None = None,
) -> Held:
    """Multipliers in passes: (W + weight J'J) d' = what is left + weight J' (what J d misses), nu' likewise.

    Rows of J may be zero or follow from others: nu is then one of many, d the only one. Stops by itself, or after
    as many ``passes``, through which JAX can differentiate backwards.
    """

    def once(state: _Pass) -> _Pass:
        miss = -over - state.reached
        left = right - W(state.d) + J.T @ (stiff.weight * miss - state.nu)
        move = apply(stiff.factored, left)
        moved = J @ move
        size, d = jnp.max(jnp.abs(move)), state.d + move
        rounding = 32 * jnp.finfo(d.dtype).eps * jnp.max(jnp.abs(d))
        shrinks = (state.n < 2) | (size < state.size / 2)  # the second pass takes back what the first went too far
        better = (size > rounding) & shrinks
        return _Pass(d, state.reached + moved, state.nu + stiff.weight * (moved - miss), size, better, state.n + 1)

    zero = jnp.zeros(J.shape[1], J.dtype)
    none, far = jnp.zeros(len(J), J.dtype), jnp.full((), jnp.inf, J.dtype)
    start = _Pass(zero, none, none, far, jnp.ones((), bool), jnp.zeros((), jnp.int32))
    if passes is None:
        end = lax.while_loop(lambda s: s.better & (s.n < PASSES), once, start)
    else:
        end = lax.fori_loop(0, passes, lambda _, s: once(s), start)
    return Held(end.d, end.nu, end.n)


def split(face: Facet, r: jax.Array) -> Held:
    """r = d + J' nu with J d = 0."""
    weight = jnp.asarray(1 / softness(r.dtype), r.dtype)
    return solve_held(face.J, Stiff(face.across, weight), lambda d: d, r, passes=SPLITS)
