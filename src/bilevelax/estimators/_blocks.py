"""What a step of BSVRB does to the sampled blocks: trackers, and the two ways to the implicit term."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.core.problem import Eta, Key, Problem, PyTree, X, Xi, Y
from bilevelax.exact.context_rows import put, take


class Blocks(NamedTuple):
    """The sampled contexts and, of each, one batch for f, one for grad_2 g and g22, one for g12."""

    rows: jax.Array
    xi: Xi
    eta_f: Eta
    eta_g: Eta
    eta_c: Eta


class Point(NamedTuple):
    """x and the y_i of the sampled blocks, stacked."""

    x: X
    y: Y


class Adjoints(NamedTuple):
    """Version 2: v_i, its value one step ago, and the tracker u_i of g22_i v_i - grad_2 f_i."""

    v: Y
    v_prev: Y
    u: Y


Track = Callable[[PyTree, PyTree, PyTree], PyTree]  # (old, phi at z^t, phi at z^{t-1}) -> new


MANY = 10  # times as many contexts as blocks, from which on sorting all of them takes longer than drawing a few


def few_of_many(key: Key, M: int, n: int) -> jax.Array:
    """n different numbers below M, every set equally likely: Floyd's algorithm, whose cost does not grow with M."""
    tops = jnp.arange(M - n, M)
    drawn = random.randint(key, (n,), 0, tops + 1)

    def place(i: jax.Array, rows: jax.Array) -> jax.Array:
        taken = jnp.any(rows == drawn[i])
        return rows.at[i].set(jnp.where(taken, tops[i], drawn[i]))

    return lax.fori_loop(0, n, place, jnp.full(n, -1, drawn.dtype))


def draw_blocks(key: Key, problem: Problem, M: int, n: int) -> Blocks:
    """n of the M contexts, all different, all equally likely, and their data."""
    keys = [random.fold_in(key, role) for role in range(4)]
    rows = few_of_many(keys[0], M, n) if n * MANY <= M else random.permutation(keys[0], M)[:n]
    xi = jax.vmap(problem.nth_context)(rows)
    draw = lambda key: jax.vmap(lambda i, xi: problem.conditional(random.fold_in(key, i), xi))(rows, xi)
    return Blocks(rows, xi, *map(draw, keys[1:]))


def grads_f(problem: Problem, blocks: Blocks, z: Point) -> tuple[X, Y]:
    return jax.vmap(problem.grad_f, in_axes=(None, 0, 0, 0))(z.x, z.y, blocks.eta_f, blocks.xi)


def direction(problem: Problem, blocks: Blocks, z: Point, grad_x: X, r: Y) -> X:
    """The mean of grad_1 f_i - g12_i r_i over the sampled blocks."""
    implicit = jax.vmap(problem.cross_g, in_axes=(None, 0, 0, 0, 0))(z.x, z.y, blocks.eta_c, blocks.xi, r)
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), tree.sub(grad_x, implicit))


def by_adjoints(
    problem: Problem,
    blocks: Blocks,
    now: Point,
    before: Point,
    memory: Adjoints,
    track: Track,
    move: Callable[[Y, Y], Y],
) -> tuple[X, X, Adjoints]:
    """Version 2: the direction at z^t and at z^{t-1}, and the adjoints after ``move(v, u)`` of all blocks."""
    hess = jax.vmap(problem.hess_g, in_axes=(None, 0, 0, 0, 0))

    def at(z: Point, v: Y) -> tuple[X, Y]:
        grad_x, grad_y = grads_f(problem, blocks, z)
        residual = tree.sub(hess(z.x, z.y, blocks.eta_g, blocks.xi, v), grad_y)
        return direction(problem, blocks, z, grad_x, v), residual

    G_now, residual_now = at(now, take(memory.v, blocks.rows))
    G_before, residual_before = at(before, take(memory.v_prev, blocks.rows))
    u = put(memory.u, blocks.rows, track(take(memory.u, blocks.rows), residual_now, residual_before))
    return G_now, G_before, Adjoints(move(memory.v, u), memory.v, u)


def by_hessians(
    problem: Problem,
    blocks: Blocks,
    now: Point,
    before: Point,
    memory: jax.Array,
    track: Track,
    mu: float,
    seen: jax.Array,
) -> tuple[X, X, jax.Array]:
    """Version 1: the direction at z^t with H^t and at z^{t-1} with H^{t-1}, and the Hessians tracked so far."""
    flatten = jax.vmap(lambda y: ravel_pytree(y)[0])
    unravel = jax.vmap(ravel_pytree(take(now.y, 0))[1])
    identity = jnp.eye(memory.shape[-1], dtype=memory.dtype)

    def hessian(x: X, y: Y, eta: Eta, xi: Xi) -> jax.Array:
        unit = ravel_pytree(y)[1]
        return jax.vmap(lambda e: ravel_pytree(problem.hess_g(x, y, eta, xi, unit(e)))[0])(identity)

    hessians = lambda z: jax.vmap(hessian, in_axes=(None, 0, 0, 0))(z.x, z.y, blocks.eta_g, blocks.xi)

    old = memory[blocks.rows]
    new = at_least(track(old, hessians(now), hessians(before)), mu)
    old = jnp.where(seen[:, None, None], old, new)
    points = now, before
    grads = [grads_f(problem, blocks, z) for z in points]
    slopes = jnp.stack([flatten(grad_y) for _, grad_y in grads])
    # One call for both: of two batched LAPACK calls at once, each may wait for the other's thread for ever.
    rs = jnp.linalg.solve(jnp.stack([new, old]), slopes[..., None])[..., 0]
    at_now, at_before = (
        direction(problem, blocks, z, grad_x, unravel(r)) for z, (grad_x, _), r in zip(points, grads, rs, strict=True)
    )
    return at_now, at_before, memory.at[blocks.rows].set(new)


def at_least(H: jax.Array, mu: float) -> jax.Array:
    """The nearest symmetric matrices with eigenvalues >= mu."""
    values, vectors = jnp.linalg.eigh((H + H.mT) / 2)
    return (vectors * jnp.maximum(values, mu)[..., None, :]) @ vectors.mT


def tracker(seen: jax.Array, a: float, c: float) -> Track:
    """MSVR: (1-a) s + a phi(z^t) + c [phi(z^t) - phi(z^{t-1})] on the sampled rows; phi(z^t) on a first visit."""

    def one(old: jax.Array, now: jax.Array, before: jax.Array) -> jax.Array:
        known = seen.reshape(-1, *[1] * (now.ndim - 1))
        return jnp.where(known, (1 - a) * old + a * now + c * (now - before), now)

    return lambda old, now, before: jax.tree.map(one, old, now, before)


def extrapolation(a: float, blocks: int, M: int) -> float:
    """The c for which E|s_i - phi_i|^2 has no cross term between old error and the change of phi_i."""
    return (M - blocks) / (blocks * (1 - a)) + (1 - a)


def clip_rows(v: Y, R: float | None) -> Y:
    """Each row of the table scaled back to norm R at most."""
    if R is None:
        return v
    norms = jax.vmap(tree.norm)(v)
    scale = R / jnp.maximum(norms, R)
    return jax.tree.map(lambda a: a * scale.reshape(-1, *[1] * (a.ndim - 1)), v)
