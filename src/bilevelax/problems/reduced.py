"""The follower's answers written in a basis: one lower level in W, sampled jointly (Bouscary, Zhang and Amin 2026)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax.base.errors import require_unconstrained
from bilevelax.core.problem import Hints, Key, Problem, PyTree, X, Xi, Y
from bilevelax.problems.bases import Scaled, as_basis, coordinates, scaled
from bilevelax.problems.joint import Pair, at_answer, draw_pair, in_memory, is_joint, pair_at
from bilevelax.problems.on_disk import Blocks, OnDisk, Rows, matrix


class Reduction(NamedTuple):
    """The data leaves of a reduced problem."""

    inner: Problem  # with the rows or samplers that pairs come from
    features: Scaled
    phi: Any  # the basis at every row, (n, N); None where pairs are drawn by samplers or read from disk


def reduced(problem: Problem, basis: Any, *, like: PyTree = None) -> Problem:
    r"""``problem`` with answers restricted to y(xi) = y_1^0 + W Phi(xi), and W as the follower's variable:

    .. math::
        \min_x E_{\xi, \eta} f(x, W^*(x) \Phi(\xi), \eta, \xi), \quad
        W^*(x) = \arg\min_W E_{\xi, \eta} g(x, W \Phi(\xi), \eta, \xi)

    There is one context and its outcomes are joint draws (xi, eta): no draw of eta given xi is needed. What is
    minimised, checked and certified is this reduced problem; its distance from the contextual one is that of y*
    from the basis, which `check` tells. On a problem of `from_joint`, ``saa("all")`` is its exact gradient; of rows
    on disk too, added up over blocks in a few passes. `answers` gives y(xi) for a W.

    The functions are made uncorrelated on the data, so that the lower level is as well conditioned as g.

    Args:
        problem: of `from_joint`, or any other: pairs are then drawn by its two samplers.
        basis: `chebyshev`, `fourier`, `splines`, `random_features`, `forest_leaves` or a function z -> vector of
            the coordinates of a context.
        like: stacked contexts that the basis is scaled on; by default the rows of a problem of pairs.
    """
    require_unconstrained("reduced", problem, "saa or antithetic_mlmc on the problem itself")
    rows: Any = problem.data if is_joint(problem) else None
    streamed, stored = isinstance(rows, OnDisk), isinstance(rows, Rows)
    blocks = rows.context_blocks if streamed and like is None else None
    features, phi = scaled(as_basis(basis), matrix(_contexts(problem, like)), blocks)
    if like is not None:
        phi = np.asarray(jax.vmap(features)(jnp.asarray(matrix(rows.contexts)))) if stored else None
    data, many = Reduction(problem, features, jnp.asarray(phi, float) if stored else None), features.mixing.shape[1]
    answer = lambda x, W, pair: _answer(problem, x, W, pair.xi, pair.phi)
    return Problem(
        f=at_answer(problem.f, answer),
        g=at_answer(problem.g, answer),
        sample_context=lambda key, data: jnp.zeros((), jnp.int32),
        sample_conditional=lambda key, xi, data: _draw(key, data),
        init_y=lambda x, xi: _zeros(problem, x, many),
        data=data,
        mu_g=problem.mu_g,  # E Phi Phi^T = I
        L_g1=None if problem.L_g1 is None or rows is None else _largest(features, phi, rows) * problem.L_g1,
        n_contexts=1,
        context_at=lambda i, data: jnp.asarray(i, jnp.int32),
        support=_all_rows if stored else None,
        hints=Hints(blocks=_in_blocks) if streamed else None,
    )


def _largest(features: Scaled, phi: np.ndarray | None, rows: Any) -> float:
    """max |Phi|^2 over all rows."""
    at = jax.jit(jax.vmap(features))
    values = [phi] if phi is not None else (np.asarray(at(jnp.asarray(Z))) for Z in rows.context_blocks())
    return max(float(np.max(np.sum(each**2, axis=1))) for each in values)


def reduced_to(problem: Problem) -> str:
    """What a statement about F is about: nothing to add, or the reduced problem."""
    if not isinstance(problem.data, Reduction):
        return ""
    features = problem.data.features
    return f", F of the problem reduced to {features.mixing.shape[1]} functions of {features.basis.name}"


def answers(problem: Problem, x: X, W: jax.Array, contexts: PyTree) -> Y:
    """y(xi) of a `reduced` problem for stacked contexts, given W, e.g. from ``respond(problem, x, 0, key=key)``."""
    inner, features, _ = problem.data
    xis = _as_inner(inner, contexts)
    return jax.vmap(lambda xi: _answer(inner, x, W, xi, features(coordinates(xi))))(xis)


def _as_inner(inner: Problem, contexts: PyTree) -> Xi:
    """Contexts as the inner problem's losses take them: rows of a table have a number too."""
    if not is_joint(inner):
        return contexts
    stacked = jax.tree.map(jnp.asarray, contexts)
    return inner.nth_context(0)._replace(row=jnp.zeros(len(jax.tree.leaves(stacked)[0]), jnp.int32), value=stacked)


def _contexts(problem: Problem, like: PyTree) -> Xi:
    if like is not None:
        return jax.tree.map(jnp.asarray, like)
    if not is_joint(problem):
        raise ValueError(
            "`like` of reduced must be contexts to scale the basis on, since this problem has samplers and no rows: "
            "jax.vmap(problem.context)(jax.random.split(key, 1000))."
        )
    return in_memory(problem).data.contexts


def _answer(inner: Problem, x: X, W: jax.Array, xi: Xi, phi: jax.Array) -> Y:
    flat, unravel = ravel_pytree(inner.start(x, xi))
    return unravel(flat + phi.astype(flat.dtype) @ W)


def _zeros(inner: Problem, x: X, many: int) -> jax.Array:
    xi = jax.eval_shape(inner.context, jax.eval_shape(lambda: random.key(0)))
    y = jax.eval_shape(lambda x, xi: ravel_pytree(inner.start(x, xi))[0], x, xi)
    return jnp.zeros((many, y.size), y.dtype)


def _draw(key: Key, data: Reduction) -> Pair:
    pair = draw_pair(key, data.inner)
    return pair._replace(phi=data.features(coordinates(pair.xi)) if data.phi is None else data.phi[pair.xi.row])


def _all_rows(xi: Xi, data: Reduction) -> tuple[Pair, jax.Array]:
    n = data.inner.n_contexts
    rows = jax.vmap(data.inner.nth_context)(jnp.arange(n, dtype=jnp.int32))
    return Pair(rows, data.inner.data.outcomes, data.phi), jnp.full(n, 1 / n)


def _in_blocks(xi: Xi, data: Reduction) -> Blocks:
    """All rows of a table on disk, read block by block."""
    rows: OnDisk = data.inner.data
    size = rows.reader.block

    def block(b: Any) -> tuple[Pair, jax.Array]:
        j = b * size + jnp.arange(size, dtype=jnp.int32)
        pairs = pair_at(jnp.minimum(j, rows.many - 1), rows)  # the last block repeats the last row, with weight zero
        phi = jax.vmap(lambda xi: data.features(coordinates(xi)))(pairs.xi)
        return pairs._replace(phi=phi), jnp.where(j < rows.many, 1 / rows.many, 0.0)

    return Blocks(block, -(-rows.many // size), rows.many)
