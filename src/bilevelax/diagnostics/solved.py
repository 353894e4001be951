"""Contexts solved exactly by one program, eight at a time: constants, references and finite differences share it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.base.compiling import jit_solves
from bilevelax.core import trees
from bilevelax.core.problem import Eta, Key, Problem, PyTree, X, Xi, Y
from bilevelax.diagnostics.contexts import context_number, count_contexts, takes_every
from bilevelax.diagnostics.host import in_groups
from bilevelax.exact.draws import halves, samples_of
from bilevelax.exact.newton import Solution
from bilevelax.exact.sample_average import adjoint_on, bounds_term, of_stack_in_blocks, tight_linear, tight_solver
from bilevelax.problems.little import little_work

WHOLE, FIRST_HALF, SECOND_HALF = range(3)  # of a context's samples
MOVE = 0.1  # how far away the terms are looked at too, relative to 1 + |x| and to each number of y


class Solved(NamedTuple):
    """Contexts solved tightly on some of their samples, stacked."""

    xi: Xi
    y: Y  # argmin of g on these samples
    cost: Any  # f there
    grad: X  # of that, by the implicit function theorem
    terms: Any  # squared sizes of grad_1 f and of the implicit term, added
    around: Any  # the same with grad f of a point nearby
    left: Any  # error of y, relative; 1 where there is no minimum


def solved(
    key: Key,
    problem: Problem,
    x: X,
    contexts: int,
    samples: int,
    parts: tuple[int, ...] = (WHOLE,),
    most: int | None = None,
    answers_only: bool = False,
    numbers: np.ndarray | None = None,
) -> Solved:
    """Contexts 0, 1, ... of this key on each part of their samples, part after part; ``most`` of them at most.

    Or those of these ``numbers``, by the program of so many ``contexts``. ``answers_only`` leaves out all but xi, y
    and what is left: a smaller program.
    """
    M, every = count_contexts(problem, contexts), takes_every(problem, contexts)
    M = min(M, most or M)
    numbers = np.arange(M, dtype=np.int32) if numbers is None else numbers
    lanes = np.tile(numbers, len(parts)), np.repeat(np.asarray(parts, np.int32), len(numbers))
    found: Solved = in_groups(lambda lanes: _solved(key, problem, x, lanes, every, samples, answers_only), lanes, M)
    return found


@jit_solves(little_work, static_argnames=("every", "samples", "answers_only"))
def _solved(
    key: Key,
    problem: Problem,
    x: X,
    lanes: tuple[jax.Array, jax.Array],
    every: bool,
    samples: int,
    answers_only: bool = False,
) -> Solved:
    def one(i: jax.Array, part: jax.Array) -> Solved:
        xi = context_number(i, key, problem, every)
        key_eta, key_u = (random.fold_in(random.fold_in(key, i), role) for role in (1, 2))
        etas, weights = samples_of(key_eta, problem, xi, samples)
        if problem.support is None:
            weights = jnp.stack([weights, *halves(samples)])[part]
        return at_minimum(key_u, problem, x, xi, etas, weights, answers_only)

    return jax.vmap(one)(*lanes)


def at_minimum(key: Key, problem: Problem, x: X, xi: Xi, etas: Eta, weights: jax.Array, answer_only: bool) -> Solved:
    """One context on weighted samples: y*, and there the gradient and the sizes of its two terms.

    The implicit term g12 r has the size of g12 u |r| for a random direction u: where it is the whole
    gradient, g12 r is zero at a stationary point and r need not be. Taken in y's units as given and in `units`, the
    smaller counts: numbers of y that differ much in size would make it as large as any error.
    """
    average = lambda x: of_stack_in_blocks(problem, x, xi, etas, weights)
    here, start = average(x), problem.start(x, xi)
    solution: Solution = tight_solver(start)(here, start)
    y, left = solution.y, jnp.where(solution.solved, solution.error, 1.0)
    if answer_only:
        return Solved(xi, y, None, None, None, None, left)
    own = units(y, start)
    u_x, u_y = (unit(key_u, like) for key_u, like in zip(random.split(key), (x, y), strict=True))
    u_own = tree.mul(own, u_y)
    near = trees.add_scale(x, MOVE * (1 + tree.norm(x)), u_x), trees.add_scale(y, MOVE * tree.size(y) ** 0.5, u_own)
    # here and nearby, and the solves and products with both, each once in the program
    grads_x, grads_y = jax.vmap(lambda x, y: average(x).grad_f(y))(*map(_stack, (x, y), near))
    rs = jax.vmap(lambda grad_y: adjoint_on(here, y, solution.where, grad_y, tight_linear(), solution.memory)[0])(
        grads_y
    )
    directions = jax.tree.map(lambda a, *us: jnp.append(a, jnp.stack(us), 0), rs, u_y, u_own)
    images = jax.vmap(lambda r: here.cross_g(y, r))(directions)
    if here.inside is not None and here.inside.constraint.moves:
        moved = jax.vmap(lambda grad_y, r: bounds_term(here, y, solution.where, grad_y, r))(grads_y, rs)
        images = jax.tree.map(lambda a, b: a.at[:2].add(-b), images, moved)
    square = jax.vmap(lambda a: tree.norm(a, squared=True).astype(float))  # x and y may differ in precision
    sizes = square(rs), jax.vmap(lambda r: tree.norm(tree.div(r, own), squared=True).astype(float))(rs)
    at_random = jnp.minimum(sizes[0] * square(images)[2], sizes[1] * square(images)[3])
    terms, around = square(grads_x) + jnp.maximum(square(images)[:2], at_random)
    grad = jax.tree.map(lambda a, b: a[0] - b[0], grads_x, images)
    return Solved(xi, y, here.f(y), grad, terms, around, left)


def _stack(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.stack([a, b]), a, b)


def unit(key: Key, like: PyTree) -> PyTree:
    """A random direction."""
    flat, unravel = ravel_pytree(like)
    direction = random.normal(key, flat.shape, flat.dtype)
    return unravel(direction / jnp.linalg.norm(direction))


def units(y: Y, start: Y) -> Y:
    """What each number of y is measured in: what it is and what it came by; one where that is nothing."""

    def of(y: jax.Array, start: jax.Array) -> jax.Array:
        size = jnp.abs(y) + jnp.abs(y - start)
        return jnp.where(size > 100 * jnp.finfo(y.dtype).eps, size, 1)

    return jax.tree.map(of, y, start)
