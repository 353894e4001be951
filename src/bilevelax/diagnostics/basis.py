"""Is the basis of a `reduced` problem rich enough, and does it determine W? Rows of `check`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax import random

from bilevelax.base.compiling import jit_once
from bilevelax.base.text_table import number, percent
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.diagnostics.bias import Bias
from bilevelax.diagnostics.check_report import CheckRow
from bilevelax.diagnostics.gap import (
    JUDGED,
    gap_to_exact,
    losses_on_rows,
    neighbours_answers,
    relative_gap,
    starts_on_rows,
)
from bilevelax.diagnostics.host import flat
from bilevelax.diagnostics.reference import all_outcomes
from bilevelax.estimators.saa import saa
from bilevelax.exact.respond import respond
from bilevelax.problems.bases import LEAST_EIGENVALUE, Basis
from bilevelax.problems.joint import in_memory, is_joint, some_rows
from bilevelax.problems.reduced import Reduction, answers, reduced

HELD_OUT = 0.25  # of the rows
DRAWN = 4096  # pairs and contexts of a problem with samplers
RICHER = "take more functions, or another kind: y* is not in their span"
NOISY = "noise leaves it open: more rows"


class Richer(NamedTuple):
    """What fewer restrictions change: gaps of g on held-out rows, relative to all that the lower level gains there."""

    gain: Bias  # against twice the functions
    unrestricted: Bias | None  # against neighbours' answers


def basis_rows(problem: Problem, x: X, key: Key, tol: float, scale: float) -> list[CheckRow]:
    """Nothing for a problem that is not reduced."""
    if not isinstance(problem.data, Reduction):
        return []
    features, inner = problem.data.features, problem.data.inner
    named = f"{features.mixing.shape[1]} functions of {features.basis.name}"
    least = f"{number(float(features.least))}, {named}"
    rows = [CheckRow("basis: smallest eigenvalue", True, least, f">= {number(LEAST_EIGENVALUE)}")]
    if not is_joint(inner):
        rows.append(_gap_row("basis: g against exact responses", to_exact(problem, x, key), tol))
    if features.basis.twice is None:
        return rows
    if is_joint(inner) and problem.blocks is not None:  # on disk: both are compared on the sample in memory
        problem = reduced(in_memory(inner), features.basis)
    try:
        if is_joint(inner):
            richer = with_twice(problem, x, key)
            rows.append(_gap_row("basis: g on held-out rows", richer.gain, tol))
            if richer.unrestricted is not None:
                rows.append(_gap_row("basis: g against neighbours' answers", richer.unrestricted, tol))
        return [*rows, _moved_row(gradient_with_twice(problem, x, key), tol, scale)]
    except ValueError:
        told = "too few rows for twice the functions"
        few = CheckRow("basis: twice the functions", None, told, "a comparison", "more rows, or fewer functions")
        return [*rows, few]


def _gap_row(name: str, gap: Bias, tol: float) -> CheckRow:
    ok = gap.decided(tol)
    return CheckRow(name, ok, f"gap {gap}", f"<= {percent(tol)}", RICHER if ok is False else "" if ok else NOISY)


def _moved_row(distance: float, tol: float, scale: float) -> CheckRow:
    moved = distance / scale if scale else float("nan")
    ok = None if not scale else bool(moved <= tol)
    remedy = "" if ok else RICHER if ok is False else "the gradient's terms vanish at this x: check at another"
    wanted = f"<= {percent(tol)} of the terms"
    return CheckRow("basis: gradient with twice the functions", ok, percent(moved), wanted, remedy)


def to_exact(problem: Problem, x: X, key: Key) -> Bias:
    """The gap to y*(x; xi), where the problem inside can draw eta given xi."""
    key_W, key_y = random.split(key)
    W = respond(problem, x, problem.nth_context(0), key=key_W, n=DRAWN)
    alone = lambda xi: jax.tree.map(lambda a: a[0], answers(problem, x, W, jax.tree.map(lambda a: a[None], xi)))
    return gap_to_exact(problem.data.inner, x, alone, key_y)


def with_twice(problem: Problem, x: X, key: Key) -> Richer:
    """This basis against its double and against none: answers fitted on some rows and judged on the others."""
    inner, features, _ = problem.data
    order = np.asarray(random.permutation(key, inner.n_contexts))
    judged, fitted = np.split(order, [max(2, int(HELD_OUT * len(order)))])
    on_rows = some_rows(inner, fitted)

    def held_out(basis: Basis) -> np.ndarray:
        narrow = reduced(on_rows, basis)
        W = respond(narrow, x, narrow.nth_context(0), key=key)
        contexts = jax.tree.map(lambda a: a[judged], inner.data.contexts)
        return losses_on_rows(inner, x, judged, answers(narrow, x, W, contexts))

    ours, theirs = held_out(features.basis), held_out(features.basis.twice())
    start = losses_on_rows(inner, x, judged, starts_on_rows(inner, x, judged))
    few = judged[:JUDGED]
    free: Y | None = neighbours_answers(inner, x, fitted, few)
    unrestricted = None
    if free is not None:
        unrestricted = relative_gap(ours[: len(few)], losses_on_rows(inner, x, few, free), start[: len(few)])
    return Richer(relative_gap(ours, theirs, start), unrestricted)


def gradient_with_twice(problem: Problem, x: X, key: Key) -> float:
    """|difference of the hypergradients|: on all rows, or on the same draws of pairs."""
    inner, features, _ = problem.data
    joint = is_joint(inner)
    like = None if joint else jax.vmap(inner.context)(random.split(key, DRAWN))
    estimator: Estimator = all_outcomes() if joint else saa(DRAWN)
    wide = reduced(inner, features.basis.twice(), like=like)
    run = jit_once(static_argnames="estimator")(
        lambda problem, estimator: estimator.estimate(key, problem, x, ())[0].grad
    )
    found, richer = (flat(run(each, estimator=estimator)) for each in (problem, wide))
    return float(np.linalg.norm(found - richer))
