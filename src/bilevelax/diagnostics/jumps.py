"""Do f and g change in y as their derivatives say? Jumps (floor, round, sign) have none: no small step meets one."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from optax import tree

from bilevelax.base.compiling import jit_solves
from bilevelax.base.text_table import percent
from bilevelax.core import trees
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.diagnostics.check_report import CheckRow
from bilevelax.diagnostics.solved import units
from bilevelax.exact.newton import rounding_of
from bilevelax.problems.little import little_work

PATHS = 256  # lines between answers, at least, along which f and g are compared with their derivatives
STRATA = 4  # places on a line, one in each part of it, behind each of two means of the slope
ALLOWED = 0.05  # share of jumps in the changes, as roots of squares
SURE = 5.0  # times the root of the sum of squares: a sum of so many products of errors is not zero by chance
DOUBT, ROUNDS = 2.0, 4  # of those, from which on more lines are looked at; as many again, so many times in all
FLAT = 4  # lines that jump, while none of them has a slope anywhere: no chance either


class Line(NamedTuple):
    """Drawn by NumPy, which compiles nothing."""

    answer: Any  # number of the context whose answer it starts from
    other: Any  # that of the answer it leads to; below zero: a push
    push: Y  # in units of y
    t: Any  # (2, STRATA): where on it slopes are taken, one in each part


def jump_rows(key: Key, problem: Problem, x: X, contexts: Xi, y: Y) -> list[CheckRow]:
    """A row for f and one for g, given contexts and their answers, stacked.

    Along a line the change is the mean slope, at places drawn at random, wherever a function has no jump; kinks do no
    harm. Two such means err independently, so the products of their errors have mean zero; a jump is in both of them.
    """
    rng = np.random.default_rng(np.asarray(random.key_data(key)).tolist())
    looks: list[Any] = []
    for i in range(ROUNDS):
        key_i = random.fold_in(key, i) if i else key
        looks.append(_along_lines(key_i, problem, x, contexts, y, _lines(rng, y)))
        found = [Jumps.along(*each) for each in jax.tree.map(lambda *a: np.concatenate(a), *looks)]
        if not any(each.doubtful for each in found):
            break
    return [each.row(name) for name, each in zip("fg", found, strict=True)]


def _lines(rng: np.random.Generator, y: Y) -> Line:
    M = len(jax.tree.leaves(y)[0])
    n = M * -(-PATHS // M)
    push = jax.tree.map(lambda a: rng.normal(size=(n, *a.shape[1:])).astype(a.dtype), y)
    t = ((np.arange(STRATA) + rng.random((n, 2, STRATA))) / STRATA).astype(np.result_type(*jax.tree.leaves(push)))
    return Line(np.arange(n, dtype=np.int32) % M, rng.integers(-M, M, n, np.int32), push, t)


class Jumps(NamedTuple):
    """What lines tell of one function."""

    share: float  # of jumps in the changes, as roots of squares
    sure: float  # the sum of products of errors, in roots of the sum of their squares
    flat: bool  # it changes on several lines and nowhere has a slope there

    @staticmethod
    def along(errors: np.ndarray, squares: np.ndarray) -> Jumps:
        """``errors``: (lines, 2); ``squares``: of the change along each line."""
        there = np.isfinite(errors).all(1) & np.isfinite(squares)
        errors, squares = (np.asarray(a, np.float64)[there] for a in (errors, squares))
        products = errors.prod(1)
        total, noise = products.sum(), np.sqrt(np.sum(products**2))
        share = float(np.sqrt(max(total, 0.0) / max(squares.sum(), np.finfo(float).tiny)))
        moved = (errors != 0).any(1)
        flat = moved.sum() >= FLAT and np.allclose(errors[moved] ** 2, squares[moved, None], rtol=1e-5, atol=0)
        return Jumps(share, float(total / max(noise, np.finfo(float).tiny)), bool(flat))

    @property
    def told(self) -> bool:
        return self.sure > SURE or self.flat

    @property
    def doubtful(self) -> bool:
        return not self.told and self.sure > DOUBT and self.share > ALLOWED

    def row(self, name: str) -> CheckRow:
        jumps = self.told and self.share > ALLOWED
        remedy = f"look for floor, round, sign or a comparison in {name}: its gradient in y does not see them"
        told = f"{percent(self.share if self.told else 0.0)} of its changes are jumps"
        return CheckRow(f"{name} has no jumps in y", not jumps, told, f"<= {percent(ALLOWED)}", remedy if jumps else "")


@jit_solves(little_work)
def _along_lines(key: Key, problem: Problem, x: X, contexts: Xi, answers: Y, lines: Line) -> Any:
    """For f and g: the two errors of the mean slope on each line, and its squared change."""
    at = lambda stacked, i: jax.tree.map(lambda a: a[i], stacked)

    def one(numbered: tuple[jax.Array, Line]) -> Any:
        number, line = numbered
        xi, y = at(contexts, line.answer), at(answers, line.answer)
        eta = problem.conditional(random.fold_in(key, number), xi)
        along = _direction(line, problem, x, xi, y, at(answers, jnp.maximum(line.other, 0)))
        return [_errors(lambda y, loss=loss: loss(x, y, eta, xi), y, along, line.t) for loss in (problem.f, problem.g)]

    return lax.map(one, (jnp.arange(len(lines.t), dtype=jnp.int32), lines))


def _direction(line: Line, problem: Problem, x: X, xi: Xi, y: Y, other: Y) -> Y:
    """Where to from an answer: to another context's, or as far as it is large; inside a set, towards its start."""
    start = problem.start(x, xi)
    if problem.constraint is not None:
        return tree.sub(start, y)
    return tree.where(line.other >= 0, tree.sub(other, y), tree.mul(units(y, start), line.push))


def _errors(loss: Any, y: Y, line: Y, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    def at(t: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.value_and_grad(loss)(trees.add_scale(y, t, line))
        return value, tree.vdot(slope, line).astype(value.dtype)

    values, slopes = jax.vmap(at)(jnp.append(jnp.asarray([0.0, 1.0], t.dtype), t.ravel()))
    change, slopes = values[1] - values[0], slopes[2:].reshape(t.shape)
    errors = change - slopes.mean(1)
    hidden = jnp.max(rounding_of(values[:2]))
    return jnp.where(jnp.abs(errors) > hidden, errors, 0), change**2 + jnp.mean(slopes**2)
