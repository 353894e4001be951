"""F and grad F on a fixed sample of contexts, with what the sample's size leaves uncertain.

A sample is taken in chunks of equal shape, so two programs serve every size: one draws a chunk, one answers it. Lane b
of every chunk belongs to group b; groups are independent, and the spread of their means is the noise of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree

from bilevelax.base.compiling import program
from bilevelax.core.estimate import Cost
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.exact.draws import samples_of
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_from_start

LANES = 64  # contexts of a chunk
KEPT = 2**28  # bytes of draws and answers that stay in memory; chunks beyond are drawn again
AT_ONCE = 2**26  # bytes of draws that are answered at once
PARTS = 3  # all samples of a context, and its two halves


class Chunk(NamedTuple):
    """Contexts, their samples and where their solves start; stacked."""

    xi: Xi
    etas: Eta
    weights: jax.Array  # (lanes, n), each row's sum is one
    y: Y  # (lanes, PARTS, ...)


class Answer(NamedTuple):
    """Of a chunk, one row a context: F and its gradient on all samples, and the sums of those on the two halves."""

    F: jax.Array
    grad: jax.Array
    F_halves: jax.Array
    grad_halves: jax.Array
    y: Y
    cost: Cost


@program(static_argnames="n")
def drawn(problem: Problem, x: X, key: Key, first: Any, numbers: Any, given: Xi, n: int) -> Chunk:
    """Contexts first, first + 1, ... of a sample: given, by number, or drawn with keys addressed by (key, i)."""

    def one(lane: Any, number: Any, given: Xi) -> Chunk:
        key_xi, key_eta = random.split(random.fold_in(key, first + lane))
        numbered = problem.n_contexts is not None
        xi = given if given is not None else problem.nth_context(number) if numbered else problem.context(key_xi)
        start = jax.tree.map(lambda a: jnp.broadcast_to(a, (PARTS, *a.shape)), problem.start(x, xi))
        return Chunk(xi, *samples_of(key_eta, problem, xi, n), start)

    return jax.vmap(one)(jnp.arange(len(numbers)), numbers, given)


def part_weights(weights: jax.Array, part: Any) -> jax.Array:
    """The weights of all samples (part 0), of the first half (1), of the second (2)."""
    first = jnp.arange(len(weights)) < len(weights) // 2
    chosen = jnp.where((part == 0) | (first == (part == 1)), weights, 0)
    return chosen / jnp.sum(chosen)


def tight(x: X) -> float:
    """The relative gradient norm of the follower's solves: F must be smooth to the eye of a line search."""
    return float(jnp.finfo(jnp.result_type(*jax.tree.leaves(x))).eps) ** 0.8


@program(static_argnames="at_once")
def answered(problem: Problem, x: X, chunk: Chunk, parts: Any, at_once: int) -> Answer:
    """F and grad F of each context on its samples, and on their halves where ``parts``, a traced number, is 3."""
    solver, linear = newton_solver(tol=tight(x)), direct_or_cg()

    def one(chunk: Chunk) -> Answer:
        xi, etas, weights, y = chunk

        def part(k: Any, sums: Answer) -> Answer:
            start = jax.tree.map(lambda a: a[k], sums.y)
            average = of_stack(problem, x, xi, etas, part_weights(weights, k), jnp.sum(weights > 0, dtype=jnp.int32))
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

    lanes = len(chunk.weights)
    answer = jax.vmap(one)(chunk) if at_once >= lanes else lax.map(one, chunk, batch_size=at_once)
    return answer._replace(cost=jax.tree.map(lambda a: jnp.sum(a), answer.cost))


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
        self.kept: list[Chunk] = []
        self.bytes = 0
        self.cost = Cost()
        self.rng = np.random.default_rng(np.asarray(random.key_data(key)).ravel())
        self.offsets = self.rng.random(LANES)  # of each group's contexts among numbered ones
        self.tags = self.rng.integers(0, 2**63, self.m if self.source else 0, np.uint64)

    def __len__(self) -> int:
        return -(-self.m // self.lanes)

    def numbers(self, c: int) -> np.ndarray:
        """Of the contexts of chunk c: in order, or for each group spread evenly from an offset of its own."""
        N = self.problem.n_contexts
        if self.exact or N is None:
            return np.minimum(c * self.lanes + np.arange(self.lanes), self.m - 1).astype(np.int32)
        return (((c + self.offsets) * N / len(self)).astype(np.int64) % N).astype(np.int32)

    def draw(self, x: X, c: int) -> Chunk:
        span = slice(c * self.lanes, (c + 1) * self.lanes)
        given = self.place(jax.tree.map(jnp.asarray, self.source.read(self.tags[span]))) if self.source else None
        self.cost = self.cost + Cost(xi=self.lanes)
        return drawn(self.problem, x, self.key, c * self.lanes, self.place(self.numbers(c)), given, self.n)

    def chunk(self, x: X, c: int) -> Chunk:
        """From memory where it is there."""
        if c < len(self.kept):
            return self.kept[c]
        found = self.draw(x, c)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(found))
        if len(self.kept) == c and self.bytes + size <= KEPT:
            self.kept.append(found)
            self.bytes += size
        return found

    def at(self, flat: np.ndarray, halves: bool, between: Callable[[], None] = lambda: None) -> Point:
        """F and grad F at x, and their bias where ``halves`` are answered too; ``between`` is called before chunks."""
        x = self.unravel(jnp.asarray(flat, self.dtype))
        sums = Sums(self.lanes, self.d)
        for c in range(len(self)):
            between()
            chunk = self.chunk(x, c)
            answer = answered(self.problem, x, chunk, np.int32(PARTS if halves else 1), self.at_once(chunk))
            if c < len(self.kept):
                self.kept[c] = chunk._replace(y=answer.y)
            self.cost = self.cost + jax.tree.map(int, answer.cost)
            sums.add(answer, min(self.m - c * self.lanes, self.lanes), halves)
        return sums.point(flat, self.m, self.exact)

    def at_once(self, chunk: Chunk) -> int:
        each = sum(leaf.nbytes for leaf in jax.tree.leaves(chunk.etas)) // self.lanes + 1
        return int(np.clip(AT_ONCE // each, 1, self.lanes))


class Sums:
    """Over the chunks of a sample, lane by lane, in float64."""

    def __init__(self, lanes: int, d: int) -> None:
        self.costs, self.cost_bias = np.zeros((2, lanes))
        self.rows, self.bias = np.zeros((2, lanes, d))
        self.squares: list[np.ndarray] = []

    def add(self, answer: Answer, real: int, halves: bool) -> None:
        """The first ``real`` lanes: the last chunk of all contexts repeats the last one."""
        F, grad, F_halves, grad_halves = (np.asarray(a, np.float64)[:real] for a in answer[:4])
        self.costs[:real] += F
        self.rows[:real] += grad
        if halves:
            self.cost_bias[:real] += F - F_halves / 2
            self.bias[:real] += grad - grad_halves / 2
        self.squares.append(np.sum(grad**2, 1))

    def point(self, flat: np.ndarray, m: int, exact: bool) -> Point:
        squares, each = np.concatenate(self.squares), m / len(self.costs)
        costs, rows, cost_bias, bias = (
            a[:0] if exact else a / each for a in (self.costs, self.rows, self.cost_bias, self.bias)
        )
        top = float(squares.max() / max(squares.sum(), np.finfo(float).tiny))
        F, grad = float(self.costs.sum() / m), self.rows.sum(0) / m
        return Point(np.array(flat), F, grad, costs, rows, cost_bias, bias, float(squares.mean()), top)
