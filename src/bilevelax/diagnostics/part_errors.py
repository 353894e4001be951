"""The errors of single parts of a gradient estimate, each measured with the other parts exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from optax import tree

from bilevelax.base.compiling import jit_once
from bilevelax.base.text_table import number
from bilevelax.core.double_loop import DoubleLoop
from bilevelax.core.inverse import inverse_of
from bilevelax.core.lower import lower_of
from bilevelax.core.problem import Key, Problem, PyTree, X, Xi, Y
from bilevelax.diagnostics.host import flat, flat_rows, unflat
from bilevelax.diagnostics.solved import Solved, solved
from bilevelax.exact.constraints.semismooth import Where
from bilevelax.exact.draws import samples_of
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import adjoint_on, bounds_term, differentiated, of_stack_in_blocks, where_at

REPEATS = 128  # in each context
SAMPLES = 256  # behind the exact parts
DIFFERENCED = 8  # contexts behind finite differences
LEAVES = 16  # of x, at most, each of which is looked at alone
TRIES = 4  # directions in a leaf, until one tells: along few of them F hardly moves
LARGE, SMALL = 1e-2, 1e-3  # of the largest number of x: which are alone looked at, where there are so small ones
SURE = 20  # times eps |F|: differences of F below are not told from zero


class PartErrors(NamedTuple):
    """What the parts of a double loop leave in the gradient, as rows, and the lower solver in y (root mean square)."""

    lower: np.ndarray  # y_{K+1}^0 instead of y*
    inverse: np.ndarray  # an estimate of the inverse Hessian instead of the exact solve, at y*
    error: float
    start: float


def _square(tree_: PyTree) -> jax.Array:
    return tree.norm(tree_, squared=True)


@jit_once(static_argnames=("loops",))
def _part_errors(
    key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y, loops: DoubleLoop
) -> tuple[X, X, jax.Array, jax.Array]:
    lower, inverse = lower_of(problem, loops.lower), inverse_of(problem, loops.inverse)
    linear = direct_or_cg()

    def one(lane: tuple[jax.Array, Xi, Y]) -> tuple[X, X, jax.Array, jax.Array]:
        i, xi, best = lane
        key_eta, key_part = random.split(random.fold_in(key, i))
        average = of_stack_in_blocks(problem, x, xi, *samples_of(key_eta, problem, xi, SAMPLES))

        where = where_at(average, best)
        grad_y = average.grad_f(best)[1]
        exact, _ = differentiated(average, best, where, linear)
        exact_r, _ = adjoint_on(average, best, where, grad_y, linear)
        on_face = problem if where is None else problem.constraint.restricted(problem, where.face, best)

        def run(j: jax.Array) -> tuple[X, X, jax.Array]:
            key_j = random.fold_in(key_part, j)
            y, face = problem.land(x, lower(key_j, problem, x, xi, loops.K).last, xi)
            found = differentiated(average, y, Where(face, problem.push), linear)[0]
            r, _ = inverse(key_j, on_face, x, best, xi, grad_y)
            if r is not None and where is not None:
                r = problem.constraint.tangent(where.face, r)
            off = exact_r if r is None else tree.sub(exact_r, r)
            implicit = average.cross_g(best, off)
            if where is not None and problem.constraint.moves:  # linear in (grad_2 f, r), and grad_2 f is exact
                implicit = tree.sub(implicit, bounds_term(average, best, where, tree.zeros_like(grad_y), off))
            return tree.sub(found, exact), implicit, _square(tree.sub(y, best))

        of_lower, of_inverse, errors = jax.vmap(run)(jnp.arange(REPEATS, dtype=jnp.int32))
        return of_lower, of_inverse, jnp.mean(errors), _square(tree.sub(problem.start(x, xi), best))

    M = len(jax.tree.leaves(y_star)[0])
    return lax.map(one, (jnp.arange(M, dtype=jnp.int32), contexts, y_star))


def part_errors(key: Key, problem: Problem, x: X, contexts: Xi, y_star: Y, loops: DoubleLoop) -> PartErrors:
    """By how much the lower solver and the inverse each change the gradients of these contexts, all else exact."""
    of_lower, of_inverse, errors, start = _part_errors(key, problem, x, contexts, y_star, loops)
    rows = lambda grads: flat_rows(jax.tree.map(lambda a: np.asarray(a).reshape(-1, *a.shape[2:]), grads))
    root = lambda squares: float(np.sqrt(np.mean(np.asarray(squares))))
    return PartErrors(rows(of_lower), rows(of_inverse), root(errors), root(start))


class Differences(NamedTuple):
    """The gradient against finite differences."""

    error: float  # the largest along the gradient and along a random direction
    tol: float  # relative to the gradient's terms
    noise: float  # what rounding of f may leave in the error
    leaves: tuple[str, ...]  # parts of x along which the two contradict each other, whatever the others do


def finite_differences(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> Differences:
    """The gradient along itself, along a random direction, and along up to four in every leaf of x (16 at most).

    On some contexts of `reference` with this key and on its samples, which stay the same while x moves. Where a
    difference and the gradient do not agree, a step of a tenth is tried too: x may be large against what F feels.
    """

    def solved_at(at: np.ndarray) -> Solved:
        return solved(key, problem, unflat(at, x), contexts, samples, most=DIFFERENCED)

    here = flat(x)
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(x))).eps)
    tol = 1e-4 if eps < 1e-10 else 2e-2
    first = solved_at(here)
    grad, step = flat_rows(first.grad).mean(0), eps ** (1 / 3) * (1 + float(np.linalg.norm(here)))
    blur = SURE * float(jnp.finfo(first.cost.dtype).eps) * float(np.mean(np.abs(first.cost), dtype=np.float64))

    def compare(direction: np.ndarray) -> tuple[float, float, float]:
        """(error, noise, size) along it, for the step where they agree best."""
        u = direction / max(np.linalg.norm(direction), np.finfo(np.float32).tiny)
        found = []
        for h in (step, step / 10):
            ahead, behind = (np.mean(solved_at(here + s * u).cost, dtype=np.float64) for s in (h, -h))
            slope, told = (ahead - behind) / (2 * h), float(grad @ u)
            found.append((abs(slope - told), blur / h, max(abs(slope), abs(told))))
            if found[-1][0] <= tol * found[-1][2]:
                break
        return min(found, key=lambda each: each[0] if np.isfinite(each[0]) else np.inf)

    rng = np.random.default_rng(np.asarray(random.key_data(key)).tolist())
    errors = [compare(direction) for direction in (grad, rng.normal(size=here.shape))]
    parts = [*_leaf_directions(x, rng), *_large_directions(here, rng)]
    far = [name for name, directions in parts if contradicts(map(compare, directions), tol)]
    return Differences(float(np.max([e for e, *_ in errors])), tol, max(n for _, n, _ in errors), tuple(far))


def contradicts(looks: Iterable[tuple[float, float, float]], tol: float) -> bool:
    """Along one leaf: by more than a quarter of what either says, and of rounding. The first look to tell decides."""
    for error, noise, size in looks:
        if error > max(size / 4, noise):
            return True
        if error <= tol * size:
            return False
    return False


def _leaf_directions(x: X, rng: np.random.Generator) -> list[tuple[str, Iterator[np.ndarray]]]:
    """Random directions in each leaf of x, where there are several."""
    leaves = jax.tree_util.tree_leaves_with_path(x)
    if len(leaves) < 2:
        return []
    ends = np.cumsum([leaf.size for _, leaf in leaves])

    def within(size: int, end: int) -> Iterator[np.ndarray]:
        for _ in range(TRIES):
            direction = np.zeros(ends[-1])
            direction[end - size : end] = rng.normal(size=size)
            yield direction

    both = list(zip(leaves, ends, strict=True))[:LEAVES]
    return [(jax.tree_util.keystr(path), within(leaf.size, end)) for (path, leaf), end in both]


def _large_directions(here: np.ndarray, rng: np.random.Generator) -> list[tuple[str, Iterator[np.ndarray]]]:
    """Along the large numbers of x alone, where others are far smaller: their gradient hides that of large ones."""
    size = np.abs(here)
    large = size > LARGE * size.max()
    if not np.any((size > 0) & (size < SMALL * size.max())):
        return []
    name = f" (its numbers of size {number(size.max())})"
    return [(name, (np.where(large, rng.normal(size=here.shape), 0.0) for _ in range(TRIES)))]
