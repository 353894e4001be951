"""Is my problem right, and is my gradient right? A table with a verdict."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.errors import require_integer, require_key, require_positive
from bilevelax.base.self_test import compiler_errors, remedy, sentence
from bilevelax.base.text_table import number, percent
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.basis import basis_rows
from bilevelax.diagnostics.check_constraint import constraint_rows, without_answer
from bilevelax.diagnostics.check_estimator import TOO_FEW, VANISH, Setup, at_least, estimator_rows
from bilevelax.diagnostics.check_report import CheckRow, Report
from bilevelax.diagnostics.constants import FARTHER, SLACK, Constants, measured_at
from bilevelax.diagnostics.estimates import BATCHES, unbiased
from bilevelax.diagnostics.host import flat
from bilevelax.diagnostics.jumps import jump_rows
from bilevelax.diagnostics.part_errors import Differences, finite_differences
from bilevelax.diagnostics.reference import Reference, reference
from bilevelax.diagnostics.samplers import sampler_rows
from bilevelax.diagnostics.solved import solved
from bilevelax.diagnostics.suspects import worst
from bilevelax.problems.validate import Shapes, as_arrays, check_shapes, describe
from bilevelax.run.records.progress import Progress

FLAT = "not told from zero: g may be flat in a direction of y; add a penalty (lam / 2) |y - y0|^2"
SOLVED = 0.01  # relative error of y* from which on the lower level counts as not solved


def check(
    problem: Problem,
    x: X,
    *,
    key: Key,
    estimator: Estimator | dict[str, Estimator] | None = None,
    contexts: int = 32,
    samples: int = 1024,
    n: int = 1024,
    tol: float = 0.05,
    progress: bool | None = None,
) -> Report:
    """Check a problem and the estimators of its gradient at x; ``print(check(...))`` shows the table.

    Rows: the compiler itself, structures and dtypes, samplers (equal for equal keys, of the laws that ``context_at``
    and ``support`` list), given against measured mu_g and L_g1, what solving the lower level left, the
    gradient against finite differences of an exactly solved lower level, and for each estimator
    its bias against exact gradients; for `rt_mlmc` and `dl_sgd` also their beta0, K and inverse
    alone. Biases are relative to the size of the gradient's two terms, ``|grad_1 f|`` and the implicit
    one, which cancel at a stationary point but seldom vanish there; a row fails where a 95 % interval
    lies above ``tol``, and is open where it lies on both sides or where both terms vanish.

    Args:
        estimator: one, or several by name; by default the unbiased one of `certify`.
        contexts: on how many contexts gradients are compared; all where there are no more.
        samples: draws of eta behind each exact gradient and behind mu_g.
        n: estimates in each of up to 8 rounds.
        tol: largest relative bias allowed.
        progress: show what is being done; by default if the output is a terminal or a notebook.
    """
    require_key("check", key)
    require_integer("contexts", "check", contexts, 1)
    require_integer("samples", "check", samples, 2)
    require_integer("n", "check", n, BATCHES)
    require_positive("tol", "check", tol)
    x = as_arrays("x", "check", x)
    structure = _structure(problem, x, key)
    rows = [_compiler(), *structure]
    if any(row.ok is False for row in structure):
        return Report(tuple(rows))
    if estimator is None:
        estimator = {"default estimator": unbiased(problem)}
    named = estimator if isinstance(estimator, dict) else {"estimator": estimator}
    with Progress(3 + len(named), progress, "check") as bar:
        bar.stage(0, "constants")
        key_constants, few = random.fold_in(key, 1), min(contexts, 16)
        found = solved(key_constants, problem, x, few, samples)  # by the program of the exact gradients
        if problem.constraint is not None and (missing := without_answer(found.xi, found.y)):
            return Report((*rows, *missing))
        measured = measured_at(found.y, problem, x, key_constants, few, samples)
        rare = worst(key_constants, problem, x, few, samples) if measured.mu_high > 0 else None
        least = measured if rare is None or measured.mu_g <= rare.mu_g else rare
        rows += _curvature(problem, measured, least)
        if not least.mu_high > 0:
            return Report(tuple(rows), least)
        bar.stage(1, "exact gradients")
        key_exact = random.fold_in(key, 2)
        exact = reference(key_exact, problem, x, contexts, samples)
        if problem.constraint is not None:
            rows += constraint_rows(random.fold_in(key, 5), problem, x, exact.contexts, exact.y)
            if rows[-1].ok is False:
                return Report(tuple(rows), measured, exact)
        bar.stage(2, "finite differences")
        rows.append(_solved(exact, measured))
        rows.append(_differences(exact, finite_differences(key_exact, problem, x, contexts, samples)))
        rows += jump_rows(random.fold_in(key, 6), problem, x, exact.contexts, exact.y)
        rows += basis_rows(problem, x, random.fold_in(key, 4), tol, exact.scale)
        setup = Setup(problem, x, random.fold_in(key, 3), n, tol, measured, exact)
        for done, (name, each) in enumerate(named.items(), 3):
            bar.stage(done, name)
            rows += estimator_rows(name, each, setup)
        bar.update(3 + len(named), {})
        return Report(tuple(rows), measured, exact)


def _compiler() -> CheckRow:
    """Does XLA compute rightly in this process? Some versions leave rows of long batches out.

    Asked of a plain program: those of this library leave out the fusion that may be wrong, so they are right if it is.
    """
    precisions = sorted({np.dtype(np.float32), np.dtype(jnp.result_type(float))})
    wrong = [each for dtype in precisions for each in compiler_errors(dtype=dtype, ours=False)]
    told = sentence(wrong) if wrong else "right"
    return CheckRow("compiler", not wrong, told, "right gradients of long batches", remedy() if wrong else "")


def _structure(problem: Problem, x: X, key: Key) -> list[CheckRow]:
    wanted = "one structure, shapes and dtypes that fit"
    try:
        shapes = check_shapes(problem, x)
    except ValueError as error:
        return [CheckRow("structures", False, "do not fit", wanted, str(error))]
    coarse, fine = jnp.result_type(*jax.tree.leaves(shapes.y)), jnp.result_type(*jax.tree.leaves(x))
    if jnp.finfo(coarse).bits < jnp.finfo(fine).bits:
        remedy = f"let init_y return {fine}, the precision of x: y* would be known to {coarse} only"
        return [CheckRow("structures", False, f"y is {coarse}, x {fine}", wanted, remedy)]
    if not np.isfinite(flat(x)).all():
        return [CheckRow("structures", False, "x is not finite", wanted, "check at an x of numbers")]
    found = "; ".join((f"y = {describe(shapes.y)}", *_other_precisions(problem, x, shapes)))
    return [CheckRow("structures", True, found, wanted), *sampler_rows(problem, x, key)]


def _other_precisions(problem: Problem, x: X, shapes: Shapes) -> list[str]:
    """What is of another precision than x: allowed, since data may be coarse, and told."""
    of_x = jnp.result_type(*jax.tree.leaves(x))
    losses = {name: jax.eval_shape(getattr(problem, name), x, shapes.y, shapes.eta, shapes.xi) for name in "fg"}
    told = []
    for name, value in {**shapes._asdict(), **losses}.items():
        dtypes = {a.dtype for a in jax.tree.leaves(value) if hasattr(a, "dtype")}
        others = sorted(str(each) for each in dtypes if jnp.issubdtype(each, jnp.floating) and each != of_x)
        told += [f"{name} is {', '.join(others)}, x {of_x}"] if others else []
    return told


def _curvature(problem: Problem, measured: Constants, least: Constants) -> list[CheckRow]:
    """mu_g and L_g1: are they what the problem says? The curvature is that of the ``least`` curved of many contexts."""
    mu, L = least.mu_g, measured.L_g1
    convex = at_least(0.0, least)
    remedy = "" if convex else least.verdict() if mu <= 0 or least.mu_high == np.inf else FLAT
    if convex and (far := min(measured.mu_far, least.mu_far)) < 0:
        convex, remedy = None, FARTHER.format(number(far))
    rows = [CheckRow("strongly convex in y", convex, number(mu), "> 0", remedy)]
    if problem.mu_g is not None:
        ok = at_least(problem.mu_g / (1 + SLACK), least)
        advice = f"give Problem(mu_g={number(mu)}) or less: E g has that little curvature in y"
        remedy = "" if ok else TOO_FEW if ok is None else advice if mu > 0 else "see the row above"
        rows.append(CheckRow("mu_g", ok, f"given {number(problem.mu_g)}", f"<= measured {number(mu)}", remedy))
    if problem.L_g1 is not None:
        ok = problem.L_g1 >= L * (1 - SLACK / 100)
        remedy = "" if ok else f"give Problem(L_g1={number(1.1 * L)}) or more: it must bound every sample's Hessian"
        rows.append(CheckRow("L_g1", ok, f"given {number(problem.L_g1)}", f">= measured {number(L)}", remedy))
    return rows


def _solved(exact: Reference, measured: Constants) -> CheckRow:
    """Was the follower's problem solved, in every context? All that follows stands on it."""
    ok = bool(exact.lower_error <= SOLVED)
    condition = measured.L_g1 / measured.mu_g if measured.mu_g > 0 else np.inf
    remedy = "" if ok else "g has no minimum in y that was found: see the rows above, or scale y"
    value = f"error of y* {percent(exact.lower_error)}, condition {number(condition)}"
    return CheckRow("lower level solved", ok, value, f"<= {percent(SOLVED)}", remedy)


def _differences(exact: Reference, found: Differences) -> CheckRow:
    """The exact gradient against finite differences: are f and g differentiated rightly?"""
    row = lambda ok, value, remedy: CheckRow(
        "gradient against finite differences", ok, value, f"<= {percent(found.tol)}", remedy
    )
    if found.leaves:
        told = ", ".join(found.leaves)
        return row(
            False, f"contradicts along x{told}", f"look for stop_gradient or a wrong custom derivative of x{told}"
        )
    smooth = "f or g is not smooth at y*, has a wrong custom derivative, or the lower level has no minimum"
    if exact.scale == 0 and np.isfinite(found.error):
        around = float(np.sqrt(np.nan_to_num(exact.around, posinf=0.0).mean()))
        contradicts = found.error > max(found.tol * around, found.noise)
        return row(False if contradicts else None, number(found.error), smooth if contradicts else VANISH)
    error, noise = found.error / (exact.scale or 1.0), found.noise / (exact.scale or 1.0)
    if found.tol < error <= found.tol + noise:
        return row(None, percent(error), "rounding of f hides it: take large constants out of f, or double precision")
    ok = bool(error <= found.tol)
    return row(ok, percent(error), "" if ok else smooth)
