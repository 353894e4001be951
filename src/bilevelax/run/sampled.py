"""F and grad F on a fixed sample of contexts, with what the sample's size leaves uncertain.

A sample is taken in chunks of equal shape, so two programs serve every size: one draws a chunk, one answers it. A lane
of a chunk holds `SAMPLES` samples; a context of n of them takes n / `SAMPLES` lanes, which work as one. Context i
belongs to group i modulo `LANES`; groups are independent, and the spread of their means is the noise of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree

from bilevelax.base.compiling import jit_at_once, program
from bilevelax.core.estimate import Cost
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.exact.draws import samples_of
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import Average, newton_solver, of_stack, respond_from_start

LANES = 64  # of a chunk
SAMPLES = 32  # of a lane, where outcomes are not stored
KEPT = 2**28  # bytes of draws and answers that stay in memory; chunks beyond are drawn again
AT_ONCE = 2**26  # bytes of draws that are answered at once
PARTS = 3  # all samples of a context, and its two halves
SOON = 48, 2**28  # calls and bytes of a stage up to which a program that compiles fast is the faster one


class Chunk(NamedTuple):
    """Lanes: contexts, samples of them and where their solves start; stacked."""

    xi: Xi
    etas: Eta
    weights: jax.Array  # (lanes, samples), each row's sum is one
    y: Y  # (lanes, PARTS, ...)


class Answer(NamedTuple):
    """Of a chunk, one row a lane: F and its gradient on all samples, and the sums of those on the two halves."""

    F: jax.Array
    grad: jax.Array
    F_halves: jax.Array
    grad_halves: jax.Array
    y: Y
    cost: Cost


@program()
def drawn(problem: Problem, x: X, key: Key, first: Any, numbers: Any, given: Xi, n: Any) -> Chunk:
    """Lanes first, first + 1, ... of a sample with n, traced, samples of each context: given, by number, or drawn."""
    each, real = jnp.maximum(n // SAMPLES, 1), jnp.minimum(n, SAMPLES)

    def one(lane: Any, number: Any, given: Xi) -> Chunk:
        key_xi, key_eta = random.split(random.fold_in(key, (first + lane) // each))
        numbered = problem.n_contexts is not None
        xi = given if given is not None else problem.nth_context(number) if numbered else problem.context(key_xi)
        start = jax.tree.map(lambda a: jnp.broadcast_to(a, (PARTS, *a.shape)), problem.start(x, xi))
        etas, weights = samples_of(random.fold_in(key_eta, (first + lane) % each), problem, xi, SAMPLES)
        if problem.support is None:
            weights = (jnp.arange(SAMPLES, dtype=jnp.int32) < real).astype(weights.dtype) / real.astype(weights.dtype)
        return Chunk(xi, etas, weights, start)

    return jax.vmap(one)(jnp.arange(len(numbers), dtype=jnp.int32), numbers, given)


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

    ``each`` lanes, traced too, are a context; ``at_once`` of them, a multiple, are answered together.
    """
    solver, linear = newton_solver(tol=tight(x)), direct_or_cg()

    def one(chunk: Chunk) -> Answer:
        xi, etas, weights, y = chunk

        def part(k: Any, sums: Answer) -> Answer:
            start = jax.tree.map(lambda a: a[k], sums.y)
            average = of_stack(problem, x, xi, etas, part_weights(weights, k), jnp.sum(weights > 0, dtype=jnp.int32))
            average = average if problem.support is not None else shared(average, each)
            warm = problem.carrying(start).replace(guess=lambda x, xi, data: data[1])
            response = respond_from_start(average, warm, x, xi, solver, linear)
            grad, answer = ravel_pytree(response.grad)[0], response.solution.y
            F, whole = average.f(answer).astype(grad.dtype), k == 0
            return Answer(
                jnp.where(whole, F, sums.F),
                jnp.where(whole, grad, sums.grad),
                jnp.where(whole, 0, sums.F_halves + F),
                jnp.where(whole, 0, sums.grad_halves + grad),
                jax.tree.map(lambda a, new: a.at[k].set(new), sums.y, answer),
                sums.cost + response.cost,
            )

        grad = jnp.zeros_like(ravel_pytree(x)[0])
        F, nothing = jnp.zeros((), grad.dtype), jax.tree.map(lambda a: jnp.asarray(a, jnp.int32), Cost())
        zero = Answer(F, grad, F, grad, y, nothing)
        return lax.fori_loop(0, parts, part, zero)

    together, lanes = jax.vmap(one, axis_name="lanes"), len(chunk.weights)
    if at_once >= lanes:
        answer = together(chunk)
    else:
        split = jax.tree.map(lambda a: a.reshape(-1, at_once, *a.shape[1:]), chunk)
        answer = jax.tree.map(lambda a: a.reshape(lanes, *a.shape[2:]), lax.map(together, split))
    return answer._replace(cost=jax.tree.map(lambda a: jnp.sum(a), answer.cost))


answered = program(static_argnames="at_once")(answers)
answered_soon = jit_at_once(static_argnames="at_once")(answers)  # for small stages, whose time is that of compiling


class Point(NamedTuple):
    """F and grad F of a sample at x, in float64."""

    x: np.ndarray
    F: float
    grad: np.ndarray
    costs: np.ndarray  # F of each group; empty where the sample is the problem
    rows: np.ndarray  # grad F of each group, likewise
    cost_bias: np.ndarray  # what halving the samples of its contexts takes away from each
    bias: np.ndarray
    square: float  # mean square of a context's gradient
    largest: float  # share of that mean which one context alone makes up

    @property
    def noise(self) -> float:
        """The standard error of grad: root of the mean squared distance from grad F."""
        B = len(self.rows)
        return float(np.sqrt(np.sum((self.rows - self.grad) ** 2) / (B * (B - 1)))) if B else 0.0

    def debiased(self) -> Point:
        """F_n + (F_n - F_{n/2}), without the bias of order 1/n; a fixed function of x, so it can be lowered too."""
        if not len(self.rows):
            return self
        costs, rows = self.costs + self.cost_bias, self.rows + self.bias
        return self._replace(F=float(costs.mean()), grad=rows.mean(0), costs=costs, rows=rows)


class Sample:
    """m contexts with n samples each, drawn once: a function of x."""

    def __init__(self, problem: Problem, x: X, key: Key, m: int, n: int, exact: bool, place: Any = None) -> None:
        self.source, self.problem = problem.source, problem.replace(source=None)
        self.place = place or (lambda lanes: lanes)
        self.x1, self.key, self.n, self.exact = x, key, n, exact
        flat, self.unravel = ravel_pytree(x)
        self.dtype, self.d = flat.dtype, flat.size
        self.lanes = min(m, LANES) if exact else LANES
        self.m = m if exact else -(-m // LANES) * LANES
        self.each = 1 if problem.support is not None else max(n // SAMPLES, 1)  # lanes of a context
        self.together = LANES  # lanes that memory allows to answer at once, known once a chunk was drawn
        self.kept: list[Chunk] = []
        self.bytes = 0
        self.calls, self.handled = 0, 0  # of the programs that answer, and bytes that they were given
        self.cost = Cost()
        self.rng = np.random.default_rng(np.asarray(random.key_data(key)).ravel())
        self.offsets = self.rng.random(LANES)  # of each group's contexts among numbered ones
        self.tags = self.rng.integers(0, 2**63, self.m if self.source else 0, np.uint64)

    def __len__(self) -> int:
        return -(-self.m * self.each // self.lanes)

    def contexts(self, c: int) -> np.ndarray:
        """Which of the sample's contexts the lanes of chunk c work on."""
        return np.minimum((c * self.lanes + np.arange(self.lanes)) // self.each, self.m - 1)

    def numbers(self, c: int) -> np.ndarray:
        """Of the contexts of chunk c: in order, or for each group spread evenly from an offset of its own."""
        N, i = self.problem.n_contexts, self.contexts(c)
        if self.exact or N is None:
            return i.astype(np.int32)
        spread = (i // LANES + self.offsets[i % LANES]) * N / (self.m // LANES)
        return (spread.astype(np.int64) % N).astype(np.int32)

    def draw(self, x: X, c: int) -> Chunk:
        tags = self.tags[self.contexts(c)] if self.source else None
        given = self.place(jax.tree.map(jnp.asarray, self.source.read(tags))) if self.source else None
        self.cost = self.cost + Cost(xi=self.lanes // self.each)
        first, numbers = np.int32(c * self.lanes), self.place(self.numbers(c))
        return drawn(self.problem, x, self.key, first, numbers, given, np.int32(self.n))

    def chunk(self, x: X, c: int) -> Chunk:
        """From memory where it is there."""
        if c < len(self.kept):
            return self.kept[c]
        found = self.draw(x, c)
        size = size_of(found)
        if len(self.kept) == c and self.bytes + size <= KEPT:
            self.kept.append(found)
            self.bytes += size
        return found

    def at(self, flat: np.ndarray, halves: bool, between: Callable[[], None] = lambda: None) -> Point:
        """F and grad F at x, and their bias where ``halves`` are answered too; ``between`` is called before chunks."""
        x = self.unravel(jnp.asarray(flat, self.dtype))
        sums, parts = Sums(self.lanes, self.d), np.int32(PARTS if halves else 1)
        for c in range(len(self)):
            between()
            chunk = self.chunk(x, c)
            self.together = at_once(chunk)
            answer = self.answering(chunk)(self.problem, x, chunk, parts, np.int32(self.each), self.together)
            if c < len(self.kept):
                self.kept[c] = chunk._replace(y=answer.y)
            self.cost = self.cost + jax.tree.map(int, answer.cost)
            first = c * self.lanes // self.each
            sums.add(answer, first, min(self.m - first, self.lanes // self.each), self.each, halves)
        return sums.point(flat, self.m, self.exact)

    def answering(self, chunk: Chunk) -> Callable[..., Answer]:
        """Which program: by counts, not by the clock, so that equal keys give equal answers."""
        self.calls, self.handled = self.calls + 1, self.handled + size_of(chunk)
        calls, handled = (value * max(2 * len(self) / self.calls, 1) for value in (self.calls, self.handled))
        return answered_soon if calls <= SOON[0] and handled <= SOON[1] else answered


def size_of(arrays: Any) -> int:
    """Bytes."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))


def at_once(chunk: Chunk) -> int:
    """Lanes that are answered together: all, or what memory allows, in equal parts."""
    lanes = len(chunk.weights)
    most = AT_ONCE // (size_of(chunk.etas) // lanes + 1)
    return max(k for k in range(1, lanes + 1) if lanes % k == 0 and k <= max(most, 1))


class Sums:
    """Over the chunks of a sample, lane by lane, in float64."""

    def __init__(self, lanes: int, d: int) -> None:
        self.costs, self.cost_bias = np.zeros((2, lanes))
        self.rows, self.bias = np.zeros((2, lanes, d))
        self.squares: list[np.ndarray] = []

    def add(self, answer: Answer, first: int, real: int, each: int, halves: bool) -> None:
        """Contexts first, first + 1, ...: ``real`` of them, since the last chunk of all contexts repeats the last."""
        F, grad, F_halves, grad_halves = (np.asarray(a, np.float64)[::each][:real] for a in answer[:4])
        groups = (first + np.arange(real)) % len(self.costs)
        self.costs[groups] += F
        self.rows[groups] += grad
        if halves:
            self.cost_bias[groups] += F - F_halves / 2
            self.bias[groups] += grad - grad_halves / 2
        self.squares.append(np.sum(grad**2, 1))

    def point(self, flat: np.ndarray, m: int, exact: bool) -> Point:
        squares, each = np.concatenate(self.squares), m / len(self.costs)
        costs, rows, cost_bias, bias = (
            a[:0] if exact else a / each for a in (self.costs, self.rows, self.cost_bias, self.bias)
        )
        top = float(squares.max() / max(squares.sum(), np.finfo(float).tiny))
        F, grad = float(self.costs.sum() / m), self.rows.sum(0) / m
        return Point(np.array(flat), F, grad, costs, rows, cost_bias, bias, float(squares.mean()), top)
