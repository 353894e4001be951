"""What `check` tells of followers with a constraint: which constraints hold them, and how safely that is known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevelax.base.compiling import jit_once
from bilevelax.base.text_table import number
from bilevelax.core import trees
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.diagnostics.check_report import CheckRow
from bilevelax.exact.constraints.constraint import Look
from bilevelax.exact.draws import samples_of
from bilevelax.exact.sample_average import of_stack_in_blocks, tight_solver

SAMPLES = 256  # behind each answer
CLOSE = 1e-6  # relative multipliers and slacks below which the active constraints are not safely known


@jit_once()
def _looks(key: Key, problem: Problem, x: X, contexts: Xi) -> tuple[Look, jax.Array, jax.Array, jax.Array]:
    """Of each context: the look, the sizes of force and y, whether it was solved, and numbers that tell the face."""

    def one(lane: tuple[jax.Array, Xi]) -> Any:
        i, xi = lane
        average = of_stack_in_blocks(problem, x, xi, *samples_of(random.fold_in(key, i), problem, xi, SAMPLES))
        start = problem.start(x, xi)
        found = tight_solver(start)(average, start)
        force = trees.scale(-1, average.grad_g(found.y))
        look = problem.constraint.seen(found.where.face, x, xi, found.y, force)
        probe = random.normal(key, ravel_pytree(start)[0].shape, tree.dtype(start, "highest"))
        told = problem.constraint.tangent(found.where.face, ravel_pytree(start)[1](probe))
        sizes = jnp.stack([tree.norm(force), 1 + tree.norm(found.y)])
        return look, sizes, jnp.asarray(found.solved), ravel_pytree(told)[0]

    count = len(jax.tree.leaves(contexts)[0])
    return lax.map(one, (jnp.arange(count, dtype=jnp.int32), contexts))


def without_answer(contexts: Xi, y: Y) -> list[CheckRow]:
    """A row that names a context whose answer is not finite; none where all are."""
    finite = np.asarray(jax.vmap(lambda y: jnp.all(jnp.isfinite(ravel_pytree(y)[0])))(y))
    if finite.all():
        return []
    xi = jax.tree.map(lambda a: np.asarray(a[int(np.argmin(finite))]), contexts)
    told = f"{int(np.sum(~finite))} of {len(finite)} contexts have no answer, e.g. xi = {xi}"
    remedy = "the set is empty there, or g has no minimum on it: widen the bounds"
    return [CheckRow("constraint: answers exist", False, told, "in every context", remedy)]


def constraint_rows(key: Key, problem: Problem, x: X, contexts: Xi, y: Y) -> list[CheckRow]:
    """Rows about the set, its active constraints, and whether a finite difference crosses a face."""
    if missing := without_answer(contexts, y):
        return missing
    look, sizes, solved, face = _looks(key, problem, x, contexts)
    active, independence = np.asarray(look.active), np.asarray(look.independence)
    d_y = face.shape[1]
    rows = [
        CheckRow(
            "constraint: answers exist",
            bool(np.all(solved)),
            f"{int(np.sum(solved))} of {len(solved)} solved",
            "all",
            "" if np.all(solved) else "g may be unbounded below on the set, or not convex there",
        ),
        CheckRow(
            "constraint: active",
            True,
            f"{active.min():g} to {active.max():g}, mean {active.mean():.3g}",
            f"d_y = {d_y}",
        ),
        _complementarity(look, np.asarray(sizes)),
        CheckRow(
            "constraint: independent",
            True if independence.min() > 0.99 else None,
            number(float(independence.min())),
            "rank / number of active ones = 1",
            ""
            if independence.min() > 0.99
            else "some follow from others: the gradient is right, multipliers are not unique",
        ),
    ]
    return [*rows, _crossings(key, problem, x, contexts)]


def _complementarity(look: Look, sizes: np.ndarray) -> CheckRow:
    """Strict complementarity: is it certain which constraints are active?"""
    force = np.asarray(look.multiplier) / np.maximum(sizes[:, 0], np.finfo(float).tiny)
    slack = np.asarray(look.slack) / sizes[:, 1]
    ok = True if min(force.min(), slack.min()) > CLOSE else None
    told = f"multiplier {number(float(force.min()))}, slack {number(float(slack.min()))}"
    remedy = "" if ok else "y* has no derivative where both are zero: one side's is given there"
    return CheckRow("constraint: strictly complementary", ok, told, f"relative, > {CLOSE:g}", remedy)


def _crossings(key: Key, problem: Problem, x: X, contexts: Xi) -> CheckRow:
    """How many answers change their face within the step of a finite difference."""
    flat, unravel = ravel_pytree(x)
    h = float(jnp.finfo(flat.dtype).eps) ** (1 / 3) * (1 + float(jnp.linalg.norm(flat)))
    u = random.normal(key, flat.shape, flat.dtype)
    sides = [unravel(flat + side * h * u / jnp.linalg.norm(u)) for side in (1, -1)]
    ahead, behind = (np.asarray(_looks(key, problem, side, contexts)[-1]) for side in sides)
    crossed = int(np.sum(np.abs(ahead - behind).max(1) > 1e-3))
    remedy = f"a finite difference of {number(h)} is no derivative in these contexts" if crossed else ""
    told = f"{crossed} of {len(ahead)} contexts"
    return CheckRow("constraint: faces crossed by differences", None if crossed else True, told, "none", remedy)
