"""Solves that start near where earlier ones of like contexts ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.base.errors import require_positive, require_share
from bilevelax.core.estimate import Estimate, Estimator, State
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.context_rows import table_of_starts
from bilevelax.problems.bases import coordinates

MOST = 2048  # features of a context
PAIRS = 16  # largest context whose products of coordinates are among the default features


class Memory(NamedTuple):
    """What is remembered of the contexts visited so far, and how it is used."""

    prepare: Callable[[Problem], Problem]  # the problem whose contexts can be looked up
    init: Callable[[Problem, X], State]
    recall: Callable[[State, Xi, Y], Y]  # a guess of y*(x; xi), given y_1^0 there
    learn: Callable[[State, Xi, Y, Y], State]  # from stacked contexts, answers and starting points


class Warm(NamedTuple):
    """What a warm-started estimator is made of; ``again`` warm-starts another one alike."""

    estimator: Estimator
    again: Callable[[Estimator], Estimator]


def warm_started(estimator: Estimator, memory: Memory | None = None) -> Estimator:
    """``estimator`` with solves that start from a guess learnt on the way.

    Every solve reaches the gradient norm that it would have reached from ``init_y``, and starts there where the
    guess has the larger gradient: the guess changes the cost, not the mean. It pays where answers move
    little between outer steps.

    Args:
        estimator: a `saa` or `antithetic_mlmc`, or a `minibatch` of one; a `minibatch` of the result is the same.
        memory: `warm_table` or `warm_regression`; by default a table where contexts are numbered.
    """

    def of(problem: Problem) -> Memory:
        return memory or (warm_regression() if problem.n_contexts is None else warm_table())

    def init(problem: Problem, x: X) -> State:
        memory = of(problem)
        return memory.init(memory.prepare(problem), x)

    def estimate(key: Key, problem: Problem, x: X, state: State) -> tuple[Estimate, State]:
        memory = of(problem)
        known = memory.prepare(problem)
        guess = lambda x, xi, data: memory.recall(data[1], xi, known.start(x, xi))
        warm = known.carrying(state).replace(guess=guess)
        found, _ = estimator.estimate(key, warm, x, estimator.init(warm, x))
        if not found.visits:
            raise ValueError(
                "`estimator` of warm_started must solve the lower level: saa or antithetic_mlmc. This one does not."
            )
        xis, ys = found.visits
        starts = jax.vmap(partial(known.start, x))(xis)
        return found._replace(visits=()), memory.learn(state, xis, ys, starts)

    settings = Warm(estimator, partial(warm_started, memory=memory))
    return Estimator(init, estimate, settings=settings, contexts=estimator.contexts, generic=estimator.generic)


def warm_table() -> Memory:
    """The last answer of each of finitely many contexts."""

    def learn(state: State, xis: Xi, ys: Y, starts: Y) -> State:
        return jax.tree.map(lambda a, new: a.at[xis[0]].set(new), state, ys)

    return Memory(
        prepare=_numbered,
        init=partial(table_of_starts, "warm_table"),
        recall=lambda state, xi, start: jax.tree.map(lambda a: a[xi[0]], state),
        learn=learn,
    )


def _numbered(problem: Problem) -> Problem:
    """The same problem whose contexts are pairs (number, xi)."""
    n, at = problem.n_contexts, problem.context_at
    if n is None or at is None:
        raise ValueError(
            "warm_table needs finitely many contexts: Problem(..., n_contexts=..., context_at=...). "
            "Otherwise use warm_regression."
        )

    def inner(function: Callable[..., Any], place: int) -> Callable[..., Any]:
        return lambda *args: function(*args[:place], args[place][1], *args[place + 1 :])

    numbered = lambda i, data: (jnp.asarray(i, jnp.int32), at(i, data))
    return problem.replace(
        f=inner(problem.f, 3),
        g=inner(problem.g, 3),
        sample_context=lambda key, data: numbered(random.randint(key, (), 0, n, jnp.int32), data),
        context_at=numbered,
        sample_conditional=inner(problem.sample_conditional, 1),
        support=None if problem.support is None else inner(problem.support, 0),
        hints=problem.hints._replace(blocks=None if problem.blocks is None else inner(problem.blocks, 0)),
        init_y=inner(problem.init_y, 1),
        constraint=problem.constraint and problem.constraint.seeing(xi=lambda xi: xi[1]),
    )


class Fit(NamedTuple):
    """Discounted normal equations of y - y_1^0 on features of xi, and their solution."""

    gram: jax.Array  # (p, p)
    moments: jax.Array  # (p, d_y)
    weights: jax.Array  # (p, d_y)


def warm_regression(
    features: Callable[[Xi], jax.Array] | None = None, forgetting: float = 0.9, ridge: float = 1e-6
) -> Memory:
    """Least squares of y*(x; xi) - y_1^0 on features of xi, for contexts that never come back.

    Args:
        features: ``xi -> vector`` of basis functions; by default 1, the floating-point coordinates of xi
            and, up to 16 of these, their products.
        forgetting: what a step leaves of the weight of earlier visits, which belong to an earlier x.
        ridge: relative to the mean square of the features.
    """
    features = features or _polynomial
    require_positive("ridge", "warm_regression", ridge)
    require_share("forgetting", "warm_regression", forgetting, one=True)

    def init(problem: Problem, x: X) -> State:
        xi = jax.eval_shape(problem.context, random.key(0))
        p = jax.eval_shape(features, xi).shape[0]
        if p > MOST:
            raise ValueError(
                f"warm_regression solves a system of one equation for each feature of xi, at most {MOST}. This context "
                f"has {p}; give `features`, a few functions of it, or leave warm_started out."
            )
        y = ravel_pytree(jax.tree.map(jnp.zeros_like, jax.eval_shape(partial(problem.start, x), xi)))[0]
        zero = jnp.zeros((p, y.size), y.dtype)
        return Fit(jnp.zeros((p, p), y.dtype), zero, zero)

    def recall(state: Fit, xi: Xi, start: Y) -> Y:
        flat, unravel = ravel_pytree(start)
        return unravel(flat + features(xi).astype(flat.dtype) @ state.weights)

    def learn(state: Fit, xis: Xi, ys: Y, starts: Y) -> Fit:
        rows = jax.vmap(lambda y: ravel_pytree(y)[0])(tree.sub(ys, starts))
        phi = jax.vmap(features)(xis).astype(rows.dtype)
        gram = forgetting * state.gram + phi.T @ phi
        moments = forgetting * state.moments + phi.T @ rows
        shift = ridge * jnp.trace(gram) / len(gram)
        weights = jnp.linalg.solve(gram + shift * jnp.eye(len(gram), dtype=gram.dtype), moments)
        return Fit(gram, moments, weights)

    return Memory(lambda problem: problem, init, recall, learn)


def _polynomial(xi: Xi) -> jax.Array:
    """1, the coordinates of xi, and their products where they are few."""
    z = coordinates(xi)
    i, j = jnp.triu_indices(z.size)
    products = [z[i] * z[j]] if z.size <= PAIRS else []
    return jnp.concatenate([jnp.ones(1, z.dtype), z, *products])
