"""A chunk of a sample: lanes of contexts and their samples, drawn by one program and answered by another.

A lane holds `SAMPLES` samples; a context of n of them takes n / `SAMPLES` lanes, which work as one. So the programs
serve every number of contexts and of samples.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.extend.core import jaxprs_in_params
from jax.flatten_util import ravel_pytree

from bilevelax.base.compiling import program
from bilevelax.core.estimate import Cost
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.exact.draws import samples_of
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import Average, newton_solver, of_stack, respond_from_start

LANES = 64  # of a chunk
SAMPLES = 32  # of a lane, where outcomes are not stored
AT_ONCE = 2**26  # bytes of draws that are answered at once
PARTS = 3  # all samples of a context, and its two halves


class Chunk(NamedTuple):
    """Lanes: contexts, samples of them and where their solves start; stacked."""

    xi: Xi
    etas: Eta
    weights: jax.Array  # (lanes, samples), each row's sum is one
    y: Y  # stacked


class Answer(NamedTuple):
    """Of a chunk, one row a lane: F and its gradient on all samples, and the sums of those on the two halves."""

    F: jax.Array
    grad: jax.Array
    F_halves: jax.Array
    grad_halves: jax.Array
    unsolved: jax.Array  # where no minimum of g was found on all samples
    y: Y
    cost: Cost


def draws(problem: Problem, x: X, key: Key, stage: Any, first: Any, numbers: Any, given: Xi, n: Any) -> Chunk:
    """Lanes first, first + 1, ... of a stage's sample: contexts given, by number, or drawn, with n, traced, samples."""
    each, real, key = jnp.maximum(n // SAMPLES, 1), jnp.minimum(n, SAMPLES), random.fold_in(key, stage)

    def one(lane: Any, number: Any, given: Xi) -> Chunk:
        key_xi, key_eta = random.split(random.fold_in(key, (first + lane) // each))
        numbered = problem.n_contexts is not None
        xi = given if given is not None else problem.nth_context(number) if numbered else problem.context(key_xi)
        etas, weights = samples_of(random.fold_in(key_eta, (first + lane) % each), problem, xi, SAMPLES)
        if problem.support is None:
            weights = (jnp.arange(SAMPLES, dtype=jnp.int32) < real).astype(weights.dtype) / real.astype(weights.dtype)
        return Chunk(xi, etas, weights, problem.start(x, xi))

    return jax.vmap(one)(jnp.arange(len(numbers), dtype=jnp.int32), numbers, given)


drawn = program()(draws)
drawn_soon = partial(program("at once"), straight=False)(draws)  # JAX's own loops behind keys compile faster


def work_of_lane(problem: Problem, key: Key) -> int:
    """Numbers that drawing a lane makes on its way, counted without drawing; a loop of unknown length counts once."""

    def lane(key: Key) -> Any:
        xi = problem.context(key)
        return samples_of(key, problem, xi, SAMPLES)

    return numbers_made(jax.make_jaxpr(lane)(key).jaxpr)


def numbers_made(jaxpr: Any) -> int:
    return sum(
        equation.params.get("length", 1) * sum(map(numbers_made, inner))
        if (inner := list(jaxprs_in_params(equation.params)))
        else max((math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars), default=0)
        for equation in jaxpr.eqns
    )


def shared(average: Average, each: Any) -> Average:
    """Of lanes that hold ``each`` a part of a context's samples: the mean of theirs, the same in all of them."""
    own = lax.axis_index("lanes") // each

    def mean(part: Any) -> Any:
        def over(a: jax.Array) -> jax.Array:
            everybody = lax.all_gather(a, "lanes")
            mine = jnp.arange(len(everybody), dtype=jnp.int32) // each == own
            return jnp.tensordot(mine.astype(a.dtype) / each.astype(a.dtype), everybody, 1)

        return jax.tree.map(over, part)

    after = lambda inner, outer: lambda r: outer(inner(r))
    return average._replace(
        f=lambda y: mean(average.f(y)),
        grad_f=lambda y: mean(average.grad_f(y)),
        grad_g=lambda y: mean(average.grad_g(y)),
        value_g=lambda y: mean(average.value_g(y)),
        hess_g=lambda y: after(average.hess_g(y), mean),
        cross_g=lambda y, r: mean(average.cross_g(y, r)),
    )


def part_weights(weights: jax.Array, part: Any) -> jax.Array:
    """The weights of all samples (part 0), of the first half (1), of the second (2)."""
    first = jnp.arange(len(weights)) < jnp.sum(weights > 0) // 2
    chosen = jnp.where((part == 0) | (first == (part == 1)), weights, 0)
    return chosen / jnp.sum(chosen)


def tight(x: X) -> float:
    """The relative gradient norm of the follower's solves: F must be smooth to the eye of a line search."""
    return float(jnp.finfo(jnp.result_type(*jax.tree.leaves(x))).eps) ** 0.8


def answers(problem: Problem, x: X, chunk: Chunk, parts: Any, each: Any, at_once: int) -> Answer:
    """F and grad F of each context on its samples, and on their halves where ``parts``, a traced number, is 3.

    ``each`` lanes, traced too, are a context; ``at_once`` of them, a multiple, are answered together. Halves are solved
    from the answer of the whole, which is kept; of stored outcomes there are none.
    """
    solver, linear, stored = newton_solver(tol=tight(x)), direct_or_cg(), problem.support is not None

    def one(k: Any, lane: Chunk) -> tuple[Any, Any, Any, Y, Cost]:
        xi, etas, weights, start = lane
        average = of_stack(problem, x, xi, etas, part_weights(weights, k), jnp.sum(weights > 0, dtype=jnp.int32))
        average = average if stored else shared(average, each)
        warm = problem.carrying(start).replace(guess=lambda x, xi, data: data[1])
        response = respond_from_start(average, warm, x, xi, solver, linear)
        grad, y = ravel_pytree(response.grad)[0], response.solution.y
        return average.f(y).astype(grad.dtype), grad, ~response.solution.solved, y, response.cost

    def together(lanes: Chunk) -> Answer:
        def part(k: Any, sums: Answer) -> Answer:
            F, grad, unsolved, y, cost = jax.vmap(lambda lane: one(k, lane), axis_name="lanes")(
                lanes._replace(y=sums.y)
            )
            whole = k == 0
            return Answer(
                jnp.where(whole, F, sums.F),
                jnp.where(whole, grad, sums.grad),
                jnp.where(whole, 0, sums.F_halves + F),
                jnp.where(whole, 0, sums.grad_halves + grad),
                jnp.where(whole, unsolved, sums.unsolved),
                jax.tree.map(lambda old, new: jnp.where(whole, new, old), sums.y, y),
                jax.tree.map(lambda a, b: a + jnp.sum(b, dtype=a.dtype), sums.cost, cost),
            )

        flat = ravel_pytree(x)[0]
        F, grad = (jnp.zeros((len(lanes.weights), *shape), flat.dtype) for shape in ((), flat.shape))
        zero = Answer(F, grad, F, grad, F > 0, lanes.y, jax.tree.map(lambda a: jnp.asarray(a, jnp.int32), Cost()))
        # the loop goes around the lanes: under vmap it would be traced, and batched, several times
        return part(0, zero) if stored else lax.fori_loop(0, parts, part, zero)

    lanes = len(chunk.weights)
    if at_once >= lanes:
        return together(chunk)
    answer = lax.map(together, jax.tree.map(lambda a: a.reshape(-1, at_once, *a.shape[1:]), chunk))
    joined = jax.tree.map(lambda a: a.reshape(lanes, *a.shape[2:]), answer._replace(cost=None))
    return joined._replace(cost=jax.tree.map(jnp.sum, answer.cost))


answered = program(static_argnames="at_once")(answers)
answered_soon = program("at once", static_argnames="at_once")(answers)  # small stages: their time is that of compiling


def size_of(arrays: Any) -> int:
    """Bytes."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))


def at_once(chunk: Chunk) -> int:
    """Lanes that are answered together: all, or what memory allows, in equal parts."""
    lanes = len(chunk.weights)
    most = AT_ONCE // (size_of(chunk.etas) // lanes + 1)
    return max(k for k in range(1, lanes + 1) if lanes % k == 0 and k <= max(most, 1))
