"""Is my problem right, and is my gradient right? A table with a verdict."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.errors import require_integer, require_key, require_positive
from bilevelax.base.self_test import compiler_errors, remedy, sentence
from bilevelax.base.text_table import number, percent
from bilevelax.core.double_loop import DoubleLoop
from bilevelax.core.estimate import Estimator, innermost
from bilevelax.core.inverse import default_N
from bilevelax.core.lower import lower_of
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.basis import basis_rows
from bilevelax.diagnostics.bias import Bias, relative_bias
from bilevelax.diagnostics.check_constraint import constraint_rows, without_answer
from bilevelax.diagnostics.check_report import CheckRow, Report
from bilevelax.diagnostics.constants import SLACK, Constants, measured_at
from bilevelax.diagnostics.estimates import BATCHES, batch_means, batched, means_in_a_row, unbiased
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.learned import learned_rows
from bilevelax.diagnostics.part_errors import Differences, PartErrors, finite_differences, part_errors
from bilevelax.diagnostics.reference import Reference, reference
from bilevelax.diagnostics.samplers import sampler_rows
from bilevelax.diagnostics.solved import solved
from bilevelax.problems.validate import as_arrays, check_shapes, describe
from bilevelax.run.records.progress import Progress

RATE = 0.739  # least mu_g beta0 for which EpochSGD's squared error falls as 2^-k
VANISH = "the gradient's terms vanish at this x: check at another"
TOO_FEW = "too few samples of eta to tell: raise samples"
SOLVED = 0.01  # relative error of y* from which on the lower level counts as not solved
FAR, SURE, FAINT = 0.5, 5.0, 0.01  # of `_along`: from one, in standard errors, and |grad| against its terms
ROUNDS = 8  # of n estimates each, until a bias is told from its tolerance


class Setup(NamedTuple):
    """What every row is judged with."""

    problem: Problem
    x: X
    key: Key
    n: int
    tol: float
    measured: Constants
    exact: Reference


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
    if not all(row.ok for row in structure):
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
        rows += _curvature(problem, measured)
        if not measured.mu_high > 0:
            return Report(tuple(rows), measured)
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
        rows += basis_rows(problem, x, random.fold_in(key, 4), tol, exact.scale)
        setup = Setup(problem, x, random.fold_in(key, 3), n, tol, measured, exact)
        for done, (name, each) in enumerate(named.items(), 3):
            bar.stage(done, name)
            rows += _estimator(name, each, setup)
        bar.update(3 + len(named), {})
        return Report(tuple(rows), measured, exact)


def _estimator(name: str, estimator: Estimator, setup: Setup) -> list[CheckRow]:
    rows: list[CheckRow] = []
    try:
        rows += _settings(name, estimator, setup)
        rows += learned_rows(name, estimator, setup.problem, setup.x, setup.key, setup.tol)
        rows.append(_bias(name, estimator, setup))
    except ValueError as error:  # the library's own refusal of these settings says what to change
        rows.append(CheckRow(f"{name}: settings", False, "refused", "to run on this problem", str(error)))
    return rows


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
    rows = [CheckRow("structures", True, f"y = {describe(shapes.y)}", wanted)]
    return [*rows, *sampler_rows(problem, key)]


def _curvature(problem: Problem, measured: Constants) -> list[CheckRow]:
    """mu_g and L_g1: are they what the problem says?"""
    mu, L = measured.mu_g, measured.L_g1
    convex = _at_least(0.0, measured)
    rows = [CheckRow("strongly convex in y", convex, number(mu), "> 0", "" if convex else measured.verdict())]
    if problem.mu_g is not None:
        ok = _at_least(problem.mu_g / (1 + SLACK), measured)
        advice = f"give Problem(mu_g={number(mu)}) or less: E g has that little curvature in y"
        remedy = "" if ok else TOO_FEW if ok is None else advice if mu > 0 else "see the row above"
        rows.append(CheckRow("mu_g", ok, f"given {number(problem.mu_g)}", f"<= measured {number(mu)}", remedy))
    if problem.L_g1 is not None:
        ok = problem.L_g1 >= L * (1 - SLACK / 100)
        remedy = "" if ok else f"give Problem(L_g1={number(1.1 * L)}) or more: it must bound every sample's Hessian"
        rows.append(CheckRow("L_g1", ok, f"given {number(problem.L_g1)}", f">= measured {number(L)}", remedy))
    return rows


def _at_least(value: float, measured: Constants) -> bool | None:
    """Is mu_g above ``value``? None where the samples behind it are too few to tell, or rounding hides it."""
    rounding = float(jnp.finfo(float).eps) * measured.L_g1
    return True if measured.mu_g > value + rounding else None if measured.mu_high > value else False


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


def _settings(name: str, estimator: Estimator, setup: Setup) -> list[CheckRow]:
    """beta0, K and the inverse of `rt_mlmc` and `dl_sgd`; nothing is known of others."""
    problem, loops, exact = setup.problem, innermost(estimator).settings, setup.exact
    if not isinstance(loops, DoubleLoop):
        return []
    rows = []
    lower = lower_of(problem, loops.lower)
    if lower.step_constants is not None:
        rows = _steps(name, *lower.step_constants(problem), setup.measured)
    found = part_errors(random.fold_in(setup.key, 1), problem, setup.x, exact.contexts, exact.y, loops)
    return [*rows, _lower(name, loops.K, found, setup), _inverse(name, found.inverse, setup)]


def _lower(name: str, K: int, found: PartErrors, setup: Setup) -> CheckRow:
    bias = relative_bias(found.lower, setup.exact.scale, 0.0)
    ok = bias.decided(setup.tol)
    more = max(1.0, np.ceil(np.log2(max(bias.estimate / setup.tol, 2)))) if np.isfinite(bias.estimate) else 1.0
    remedy = f"raise K to about {K + int(more)}, or start closer with init_y" if ok is False else ""
    remedy = remedy or (VANISH if setup.exact.scale == 0 else "")
    value = f"bias {bias}, |y - y*| {number(found.error)} from {number(found.start)}"
    return CheckRow(f"{name}: lower level at K = {K}", ok, value, f"<= {percent(setup.tol)}", remedy)


def _steps(name: str, beta0: float, cap: float, measured: Constants) -> list[CheckRow]:
    mu, L = measured.mu_g, measured.L_g1
    rate_ok = _at_least(RATE / beta0, measured)
    first = min(beta0 / 2, cap)
    stable = first <= 2 / L
    rate = CheckRow(
        f"{name}: mu_g beta0",
        rate_ok,
        number(mu * beta0),
        f">= {RATE}, for the rate 2^-k",
        ""
        if rate_ok
        else TOO_FEW
        if rate_ok is None
        else f"raise beta0 from {number(beta0)} to 1 / mu_g = {number(1 / mu)}",
    )
    remedy = "" if stable else f"give cap <= 1 / (2 L_g1) = {number(1 / (2 * L))}, or Problem(L_g1={number(1.1 * L)})"
    return [rate, CheckRow(f"{name}: first step", stable, number(first), f"<= 2 / L_g1 = {number(2 / L)}", remedy)]


def _inverse(name: str, grads: np.ndarray, setup: Setup) -> CheckRow:
    bias = relative_bias(grads, setup.exact.scale, 0.0)
    ok = bias.decided(setup.tol)
    mu, L = setup.measured.mu_g, setup.problem.L_g1 or setup.measured.L_g1
    enough = f" to about {default_N(mu, L)}" if mu > 0 else ""
    remedy = "" if ok is not False else f"raise N of the series{enough}, or take conjugate_gradient()"
    remedy = remedy or (VANISH if setup.exact.scale == 0 else "")
    return CheckRow(f"{name}: inverse Hessian (N)", ok, f"bias {bias}", f"<= {percent(setup.tol)}", remedy)


def _bias(name: str, estimator: Estimator, setup: Setup) -> CheckRow:
    """The estimator's mean against the exact gradient of the same contexts."""
    exact, each = setup.exact, -(-setup.n // BATCHES)
    where = setup.problem, setup.x, exact.contexts
    if estimator.keeps_state(setup.problem, setup.x):
        means = lambda key: means_in_a_row(key, *where, estimator=estimator, batches=BATCHES, each=each)[0]
    else:
        means = lambda key: batch_means(key, *where, estimator=batched(estimator, each), batches=BATCHES)
    rows = np.zeros((0, exact.grads.shape[1]))
    for round_ in range(ROUNDS):
        key = random.fold_in(setup.key, 2 + round_)
        rows = np.concatenate([rows, flat_rows(means(key))])
        bias = relative_bias(rows - exact.grad, exact.scale, exact.stderr)
        ok = bias.decided(setup.tol)
        if ok is not None or exact.scale == 0:
            break
    along, sure = _along(rows, exact)
    if sure and ok is not False:
        ok = False
    value = f"bias {bias}, {along:.2f} of the exact along it"
    return CheckRow(f"{name}: gradient", ok, value, f"<= {percent(setup.tol)}", _advice(ok, along, bias, exact))


def _along(rows: np.ndarray, exact: Reference) -> tuple[float, bool]:
    """The estimator's mean along the exact gradient, in units of it; and whether that is surely far from one.

    A bias may be small against the gradient's terms, which differ between contexts, and large against their mean.
    """
    square = exact.grad @ exact.grad
    along = rows @ exact.grad / max(square, np.finfo(float).tiny)
    if not np.isfinite(along).all() or not np.sqrt(square) > FAINT * exact.scale or exact.scale == 0:
        return float(along.mean()), False
    error = along.std(ddof=1) / np.sqrt(len(along)) + exact.stderr / np.sqrt(square)
    return float(along.mean()), bool(abs(along.mean() - 1) > FAR + SURE * error)


def _advice(ok: bool | None, along: float, bias: Bias, exact: Reference) -> str:
    if ok is None:
        return VANISH if exact.scale == 0 else "noise leaves it open: raise n"
    if ok:
        return ""
    if not np.isfinite(bias.high):
        return "estimates are not finite: smaller steps, or an L_g1 that bounds every sample's Hessian"
    if along < -0.25:
        return "it points the opposite way: look for a sign error"
    return "raise K, N or the number of samples; if the bias stays, a term of the gradient is wrong"
