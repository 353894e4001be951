"""Is the basis of a `reduced` problem rich enough, and does it determine W? Rows of `check`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.text_table import number, percent
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.bias import Bias
from bilevelax.diagnostics.check_report import CheckRow
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.reference import all_outcomes
from bilevelax.exact.respond import respond
from bilevelax.problems.bases import LEAST_EIGENVALUE, coordinates
from bilevelax.problems.joint import Pair, is_joint, some_rows
from bilevelax.problems.reduced import Reduction, reduced

HELD_OUT = 0.25  # of the rows
NORMAL = 1.96  # of a 95 % interval
RICHER = "take more functions, or another kind: y* is not in their span"


class Richer(NamedTuple):
    """What twice the functions change."""

    gain: Bias  # of g on held-out rows, relative to all that the lower level gains there
    gradient: float  # |difference of the hypergradients|


def basis_rows(problem: Problem, x: X, key: Key, tol: float, scale: float) -> list[CheckRow]:
    """Nothing for a problem that is not reduced."""
    if not isinstance(problem.data, Reduction):
        return []
    features = problem.data.features
    named = f"{features.mixing.shape[1]} functions of {features.basis.name}"
    rows = [
        CheckRow(
            "basis: smallest eigenvalue", True, f"{number(features.least)}, {named}", f">= {number(LEAST_EIGENVALUE)}"
        )
    ]
    if features.basis.twice is None or not is_joint(problem.data.inner):
        return rows
    try:
        richer = with_twice(problem, x, key)
    except ValueError:
        told = "too few rows for twice the functions"
        return [
            *rows,
            CheckRow("basis: twice the functions", None, told, "a comparison", "more rows, or fewer functions"),
        ]
    ok = richer.gain.decided(tol)
    remedy = RICHER if ok is False else "" if ok else "noise leaves it open: more rows"
    rows.append(CheckRow("basis: g on held-out rows", ok, f"gap {richer.gain}", f"<= {percent(tol)}", remedy))
    moved = richer.gradient / scale if scale else float("nan")
    ok = None if not scale else bool(moved <= tol)
    remedy = "" if ok else RICHER if ok is False else "the gradient's terms vanish at this x: check at another"
    wanted = f"<= {percent(tol)} of the terms"
    return [*rows, CheckRow("basis: gradient with twice the functions", ok, percent(moved), wanted, remedy)]


def with_twice(problem: Problem, x: X, key: Key) -> Richer:
    """This basis against its double: answers fitted on some rows and judged on the others, and gradients on all."""
    inner, features, _ = problem.data
    basis = features.basis
    order = np.asarray(random.permutation(key, inner.n_contexts))
    judged, fitted = np.split(order, [max(2, int(HELD_OUT * len(order)))])
    on_rows = some_rows(inner, fitted)
    narrow, wide = (reduced(on_rows, one) for one in (basis, basis.twice()))
    W, W_wide = (respond(each, x, jnp.zeros((), jnp.int32), key=key) for each in (narrow, wide))
    ours, theirs, none = (
        losses(each, x, weights, inner, judged)
        for each, weights in ((narrow, W), (wide, W_wide), (narrow, jnp.zeros_like(W)))
    )
    whole = float(np.mean(none - theirs))
    gap = (ours - theirs) / max(whole, np.finfo(float).tiny)
    mean, error = float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))
    gain = Bias(max(mean, 0.0), max(mean - NORMAL * error, 0.0), max(mean + NORMAL * error, 0.0))
    gradients = [
        flat_rows(jax.tree.map(lambda a: a[None], all_outcomes().estimate(key, each, x, ())[0].grad))
        for each in (problem, reduced(inner, basis.twice()))
    ]
    return Richer(gain, float(np.linalg.norm(gradients[0] - gradients[1])))


def losses(problem: Problem, x: X, W: jax.Array, inner: Problem, rows: np.ndarray) -> np.ndarray:
    """g on some rows of ``inner`` with the answers of a reduced problem for W; for W = 0, those it starts from."""
    xis = jax.vmap(inner.nth_context)(jnp.asarray(rows, jnp.int32))
    etas = jax.tree.map(lambda a: a[rows], inner.data.outcomes)
    phi = jax.vmap(lambda xi: problem.data.features(coordinates(xi)))(xis)
    one = lambda pair: problem.g(x, W, pair, jnp.zeros((), jnp.int32))
    return np.asarray(jax.vmap(one)(Pair(xis, etas, phi)), np.float64)
