"""F and grad F on a fixed sample of contexts, with what the sample's size leaves uncertain.

A sample is taken in chunks of equal shape. Context i belongs to group i modulo `LANES`; groups are independent, and the
spread of their means is the noise of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.core.estimate import Cost
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.host import flat, unflat
from bilevelax.run.lanes import (
    LANES,
    PARTS,
    SAMPLES,
    Answer,
    Chunk,
    answered,
    answered_soon,
    at_once,
    drawn,
    drawn_soon,
    size_of,
    work_of_lane,
)

KEPT = 2**28  # bytes of draws and answers that stay in memory; chunks beyond are drawn again
# calls and bytes of a stage up to which a program that compiles fast is the faster one: of any chunks, of small ones
SOON = (48, 2**28), (128, 2**24)
LITTLE = 2**22, 32  # numbers made by drawing a lane times chunks, likewise; chunks that a solve draws at least


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
    unsolved: float = 0.0  # share of contexts whose follower has no minimum that was found

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

    def __init__(
        self, problem: Problem, x: X, key: Key, m: int, n: int, exact: bool, place: Any = None, stage: int = 0
    ) -> None:
        self.source, self.problem = problem.source, problem.replace(source=None)
        self.place = place or (lambda lanes: lanes)
        self.x1, self.key, self.stage, self.n, self.exact = x, key, np.int32(stage), n, exact
        self.d = flat(x).size
        self.lanes = min(m, LANES) if exact else LANES
        self.m = m if exact else -(-m // LANES) * LANES
        self.each = 1 if problem.support is not None else max(n // SAMPLES, 1)  # lanes of a context
        self.together = LANES  # lanes that memory allows to answer at once, known once a chunk was drawn
        self.kept: list[Chunk] = []
        self.bytes = 0
        self.calls, self.handled = 0, 0  # of the programs that answer, and bytes that they were given
        self.cost = Cost()
        self.rng = np.random.default_rng([*np.asarray(random.key_data(key)).ravel(), stage])
        self.offsets = self.rng.random(LANES)  # of each group's contexts among numbered ones
        self.rounds = max(self.m // LANES, 1)
        orders = np.tile(np.arange(self.rounds), (LANES, 1))  # random: so a part of the sample is a sample too
        self.orders = self.rng.permuted(orders, axis=1) if problem.n_contexts is not None and not exact else orders
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
        spread = (self.orders[i % LANES, i // LANES] + self.offsets[i % LANES]) * N / self.rounds
        return (spread.astype(np.int64) % N).astype(np.int32)

    def draw(self, x: X, c: int) -> Chunk:
        tags = self.tags[self.contexts(c)] if self.source else None
        given = self.place(jax.tree.map(jnp.asarray, self.source.read(tags))) if self.source else None
        self.cost = self.cost + Cost(xi=self.lanes // self.each)
        first, numbers = np.int32(c * self.lanes), self.place(self.numbers(c))
        return self.drawing(self.problem, x, self.key, self.stage, first, numbers, given, np.int32(self.n))

    @cached_property
    def drawing(self) -> Callable[..., Chunk]:
        """Which program, by counts too."""
        lane = work_of_lane(self.problem, self.key) if self.source is None else 0
        chunks = len(self) if self.exact else max(len(self), LITTLE[1])
        return drawn_soon if lane * chunks <= LITTLE[0] else drawn

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

    def at(self, vector: np.ndarray, halves: bool, between: Callable[[], Any] = lambda: False) -> Point:
        """F and grad F at x, and their bias where ``halves`` are answered too.

        ``between`` is called before chunks. Where it says so, the contexts met so far, equally many of each group, are
        the sample from now on.
        """
        x = unflat(vector, self.x1)
        sums, parts = Sums(self.lanes, self.d), np.int32(PARTS if halves else 1)
        for c in range(len(self)):
            done = c * self.lanes // self.each
            if between() and done and done % LANES == 0 and not self.exact:
                self.m = done
                break
            chunk = self.chunk(x, c)
            self.together = at_once(chunk)
            answer = self.answering(chunk)(self.problem, x, chunk, parts, np.int32(self.each), self.together)
            if c < len(self.kept):
                self.kept[c] = chunk._replace(y=answer.y)
            self.cost = self.cost + jax.tree.map(int, answer.cost)
            sums.add(answer, done, min(self.m - done, self.lanes // self.each), self.each, halves)
        return sums.point(vector, self.m, self.exact)

    def answering(self, chunk: Chunk) -> Callable[..., Answer]:
        """Which program: by counts, not by the clock, so that equal keys give equal answers."""
        self.calls, self.handled = self.calls + 1, self.handled + size_of(chunk)
        stored = self.problem.n_contexts if self.problem.support is not None else None
        chunks = max(len(self), (stored or 0) / LANES)  # where all are stored, the last sample is all of them
        calls, handled = (value * max(2 * chunks / self.calls, 1) for value in (self.calls, self.handled))
        soon = any(calls <= most and handled <= size for most, size in SOON)
        return answered_soon if soon else answered


class Sums:
    """Over the chunks of a sample, lane by lane, in float64."""

    def __init__(self, lanes: int, d: int) -> None:
        self.costs, self.cost_bias = np.zeros((2, lanes))
        self.rows, self.bias = np.zeros((2, lanes, d))
        self.squares: list[np.ndarray] = []
        self.unsolved = 0

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
        self.unsolved += int(np.sum(np.asarray(answer.unsolved)[::each][:real]))

    def point(self, x: np.ndarray, m: int, exact: bool) -> Point:
        squares, each = np.concatenate(self.squares), m / len(self.costs)
        costs, rows, cost_bias, bias = (
            a[:0] if exact else a / each for a in (self.costs, self.rows, self.cost_bias, self.bias)
        )
        top = float(squares.max() / max(squares.sum(), np.finfo(float).tiny))
        F, grad = float(self.costs.sum() / m), self.rows.sum(0) / m
        about = float(squares.mean()), top, self.unsolved / m
        return Point(np.array(x), F, grad, costs, rows, cost_bias, bias, *about)
