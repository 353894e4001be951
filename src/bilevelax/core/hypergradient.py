"""The hypergradient estimate at given lower-level points."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from optax import tree

from bilevelax.core.estimate import Cost, Count
from bilevelax.core.inverse import InverseHessian, WithDraws
from bilevelax.core.problem import Eta, Key, Problem, PyTree, X, Xi, Y


class Drawn(NamedTuple):
    """What v-hat is computed from: eta'', eta', and the draws of the inverse, or its key where it draws by itself."""

    eta_f: Eta
    eta_g: Eta
    inner: Any


def draws_of(key: Key, problem: Problem, x: X, xi: Xi, inverse: InverseHessian) -> Drawn:
    """One set of draws, for as many y as there are."""
    keys = random.split(key, 3)
    draws = jax.vmap(lambda key: problem.conditional(key, xi))(keys[:2])  # together: a sampler is slow to compile
    eta_f, eta_g = (jax.tree.map(lambda a: a[i], draws) for i in range(2))  # noqa: B023 (used at once)
    inner = inverse.draw(keys[2], problem, x, xi) if isinstance(inverse, WithDraws) else keys[2]
    return Drawn(eta_f, eta_g, inner)


def at_point(drawn: Drawn, problem: Problem, x: X, y: Y, xi: Xi, inverse: InverseHessian) -> tuple[X, Cost]:
    """v-hat at y with these draws. With a constraint, y is what `epoch_sgd` leaves, which tells the face."""
    y, face = problem.land(x, y, xi)
    grad_x, grad_y = problem.grad_f(x, y, drawn.eta_f, xi)
    apply = inverse.apply if isinstance(inverse, WithDraws) else inverse
    on_face = problem if face is None else problem.constraint.restricted(problem, face, y)
    r, cost = apply(drawn.inner, on_face, x, y, xi, grad_y)
    if face is not None:
        r, grad_x, cost = problem.constraint.held(problem, x, y, xi, face, drawn.eta_g, r, grad_x, grad_y, cost)
    if r is None:
        return grad_x, Cost(eta=1, grad_f=1)
    implicit = problem.cross_g(x, y, drawn.eta_g, xi, r)
    return tree.sub(grad_x, implicit), cost + Cost(eta=2, grad_f=1, cross_g=1)


def hypergradient(
    key: Key, problem: Problem, x: X, y: Y, xi: Xi, inverse: InverseHessian, batch: int = 1
) -> tuple[X, Cost]:
    r"""v-hat of eq. (6) at y (Algorithm 4). Equal keys give equal draws at every y.

    .. math::
        \nabla_1 f(x, y; \eta'', \xi)
        - \nabla^2_{12} g(x, y; \eta', \xi) \, \hat\Lambda \, \nabla_2 f(x, y; \eta'', \xi)

    ``batch`` samples are averaged in each draw of eta', eta'' and eta_n; 1 is the paper.
    """
    problem = problem.averaged(batch)
    v, cost = at_point(draws_of(key, problem, x, xi, inverse), problem, x, y, xi, inverse)
    return v, cost.times(batch)


def hypergradients(
    key: Key, problem: Problem, x: X, ys: Y, n: Count, xi: Xi, inverse: InverseHessian, batch: int = 1
) -> tuple[X, Cost]:
    """`hypergradient` at the first n of the stacked ``ys``, all with one set of draws; the rest is not to be read.

    Small y are taken together. Large ones take turns, and none is taken for nothing: vectorised they gain nothing,
    since products of a matrix with a few vectors are no faster than one by one.
    """
    problem = problem.averaged(batch)
    drawn = draws_of(key, problem, x, xi, inverse)

    def at(y: Y) -> tuple[X, Cost]:
        v, cost = at_point(drawn, problem, x, y, xi, inverse)
        return v, jax.tree.map(lambda a: jnp.asarray(a, jnp.int32), cost)

    v, costs = jax.vmap(at)(ys) if problem.is_small(x, xi) else first_rows(at, ys, n)
    return v, jax.tree.map(lambda a: a[0], costs).at_points(n).times(batch)


def first_rows(function: Any, stacked: PyTree, n: Count) -> PyTree:
    """``function`` of the first n rows, one after another, stacked; zeros beyond."""
    row = lambda i: jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, keepdims=False), stacked)
    room = len(jax.tree.leaves(stacked)[0])
    empty = jax.tree.map(lambda s: jnp.zeros((room, *s.shape), s.dtype), jax.eval_shape(lambda: function(row(0))))

    def put(i: Count, rows: PyTree) -> PyTree:
        return jax.tree.map(lambda a, new: lax.dynamic_update_index_in_dim(a, new, i, 0), rows, function(row(i)))

    return lax.fori_loop(0, n, put, empty)
