"""Is my problem right, and is my gradient right? A table with a verdict."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax import random

from bilevelax.diagnostics.bias import Bias, relative_bias
from bilevelax.diagnostics.certify import BATCHES, batch_means, batched, unbiased
from bilevelax.diagnostics.constants import SLACK, Constants, constants
from bilevelax.diagnostics.errors_of import finite_differences, inverse_errors, lower_errors
from bilevelax.diagnostics.reference import Reference, flat_rows, only_contexts, reference
from bilevelax.diagnostics.tables import number, percent, text_table
from bilevelax.errors import require_integer, require_key, require_positive
from bilevelax.estimate import Estimator
from bilevelax.estimators.rt_mlmc import Settings
from bilevelax.inverse import default_N, inverse_of
from bilevelax.lower import lower_of
from bilevelax.problem import Key, Problem, X
from bilevelax.progress import Progress
from bilevelax.validate import as_arrays, check_shapes, describe

RATE = 0.739  # least mu_g beta0 for which EpochSGD's squared error falls as 2^-k
VANISH = "the gradient's terms vanish at this x: check at another"
FEW = "too few samples of eta to tell: raise samples"
ROUNDS = 8  # of n estimates each, until a bias is told from its tolerance


class Row(NamedTuple):
    """One line of a report. ``ok`` is None where noise leaves it open."""

    name: str
    ok: bool | None
    value: str
    expected: str
    remedy: str = ""


class Report(NamedTuple):
    """What `check` found; printing it shows the verdict and the table."""

    rows: tuple[Row, ...]
    constants: Constants | None = None
    reference: Reference | None = None

    @property
    def ok(self) -> bool:
        return all(row.ok is not False for row in self.rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.ok is False)

    @property
    def verdict(self) -> str:
        if self.failed:
            return f"FAILED: {len(self.failed)} of {len(self.rows)} checks; first: {self.failed[0].name}."
        undecided = [row.name for row in self.rows if row.ok is None]
        return f"OK: {len(self.rows)} checks passed" + (f", undecided: {', '.join(undecided)}." if undecided else ".")

    def __str__(self) -> str:
        marks = {True: "ok", False: "FAILED", None: "open"}
        rows = [(row.name, marks[row.ok], row.value, row.expected, row.remedy) for row in self.rows]
        return f"{self.verdict}\n{text_table(['check', '', 'found', 'expected', 'what to change'], rows)}"


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

    Rows: structures and dtypes, sampler determinism, given against measured mu_g and L_g1, the
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
    rows = _structure(problem, x, key)
    if not all(row.ok for row in rows):
        return Report(tuple(rows))
    if estimator is None:
        estimator = {"default estimator": unbiased(problem)}
    named = estimator if isinstance(estimator, dict) else {"estimator": estimator}
    with Progress(3 + len(named), progress, "check") as bar:
        bar.stage(0, "constants")
        measured = constants(problem, x, key=random.fold_in(key, 1), contexts=min(contexts, 16), samples=samples)
        rows += _curvature(problem, measured)
        if not measured.mu_high > 0:
            return Report(tuple(rows), measured)
        bar.stage(1, "exact gradients")
        exact = reference(random.fold_in(key, 2), problem, x, contexts, samples)
        setup = Setup(problem, x, random.fold_in(key, 3), n, tol, measured, exact)
        bar.stage(2, "finite differences")
        rows.append(_differences(setup))
        for done, (name, each) in enumerate(named.items(), 3):
            bar.stage(done, name)
            rows += _estimator(name, each, setup)
        bar.update(3 + len(named), {})
        return Report(tuple(rows), measured, exact)


def _estimator(name: str, estimator: Estimator, setup: Setup) -> list[Row]:
    rows: list[Row] = []
    try:
        rows += _settings(name, estimator, setup)
        rows.append(_bias(name, estimator, setup))
    except ValueError as error:  # the library's own refusal of these settings says what to change
        rows.append(Row(f"{name}: settings", False, "refused", "to run on this problem", str(error)))
    return rows


def _structure(problem: Problem, x: X, key: Key) -> list[Row]:
    wanted = "one structure, shapes and dtypes that fit"
    try:
        shapes = check_shapes(problem, x)
    except ValueError as error:
        return [Row("structures", False, "do not fit", wanted, str(error))]
    rows = [Row("structures", True, f"y = {describe(shapes.y)}", wanted)]
    xi = problem.context(key)
    draws = {
        "sample_context": (xi, problem.context(key)),
        "sample_conditional": (problem.conditional(key, xi), problem.conditional(key, xi)),
    }
    for name, pair in draws.items():
        same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*map(jax.tree.leaves, pair), strict=True))
        remedy = "" if same else f"let {name} draw from its key only, with jax.random"
        rows.append(
            Row(f"{name} is deterministic", same, "equal" if same else "different", "equal for equal keys", remedy)
        )
    return rows


def _curvature(problem: Problem, measured: Constants) -> list[Row]:
    """mu_g and L_g1: are they what the problem says?"""
    mu, L = measured.mu_g, measured.L_g1
    convex = _at_least(0.0, measured)
    rows = [Row("strongly convex in y", convex, number(mu), "> 0", "" if convex else measured.verdict())]
    if problem.mu_g is not None:
        ok = _at_least(problem.mu_g / (1 + SLACK), measured)
        advice = f"give Problem(mu_g={number(mu)}) or less: E g has that little curvature in y"
        remedy = "" if ok else FEW if ok is None else advice if mu > 0 else "see the row above"
        rows.append(Row("mu_g", ok, f"given {number(problem.mu_g)}", f"<= measured {number(mu)}", remedy))
    if problem.L_g1 is not None:
        ok = problem.L_g1 >= L * (1 - SLACK / 100)
        remedy = "" if ok else f"give Problem(L_g1={number(1.1 * L)}) or more: it must bound every sample's Hessian"
        rows.append(Row("L_g1", ok, f"given {number(problem.L_g1)}", f">= measured {number(L)}", remedy))
    return rows


def _at_least(value: float, measured: Constants) -> bool | None:
    """Is mu_g above ``value``? None where the samples behind it are too few to tell."""
    return True if measured.mu_g > value else None if measured.mu_high > value else False


def _differences(setup: Setup) -> Row:
    """The exact gradient against finite differences: are f and g differentiated rightly?"""
    problem, x, exact = setup.problem, setup.x, setup.exact
    error, tol = finite_differences(random.fold_in(setup.key, 0), problem, x, exact.contexts, exact.y)
    if exact.scale == 0 and np.isfinite(error):
        return Row("gradient against finite differences", None, number(error), f"<= {percent(tol)}", VANISH)
    error /= exact.scale or 1.0
    ok = bool(error <= tol)
    remedy = (
        "" if ok else "f or g is not smooth at y*, has a wrong custom derivative, or the lower level has no minimum"
    )
    return Row("gradient against finite differences", ok, percent(error), f"<= {percent(tol)}", remedy)


def _settings(name: str, estimator: Estimator, setup: Setup) -> list[Row]:
    """beta0, K and the inverse of `rt_mlmc` and `dl_sgd`; nothing is known of others."""
    problem, settings = setup.problem, estimator.settings
    if not isinstance(settings, Settings):
        return []
    lower, inverse = lower_of(problem, settings.lower), inverse_of(problem, settings.inverse)
    rows = []
    if lower.step_constants is not None:
        rows = _steps(name, *lower.step_constants(problem), setup.measured)
    key, exact = random.fold_in(setup.key, 1), setup.exact
    found = lower_errors(key, problem, setup.x, exact.contexts, exact.y, lower=lower, K=settings.K)
    bias = relative_bias(found.grads, exact.scale, 0.0)
    ok = bias.decided(setup.tol)
    more = max(1.0, np.ceil(np.log2(max(bias.estimate / setup.tol, 2)))) if np.isfinite(bias.estimate) else 1.0
    remedy = f"raise K to about {settings.K + int(more)}, or start closer with init_y" if ok is False else ""
    remedy = remedy or (VANISH if exact.scale == 0 else "")
    value = f"bias {bias}, |y - y*| {number(found.error)} from {number(found.start)}"
    rows.append(Row(f"{name}: lower level at K = {settings.K}", ok, value, f"<= {percent(setup.tol)}", remedy))
    return [*rows, _inverse(name, inverse_errors(key, problem, setup.x, exact.contexts, exact.y, inverse), setup)]


def _steps(name: str, beta0: float, cap: float, measured: Constants) -> list[Row]:
    mu, L = measured.mu_g, measured.L_g1
    rate_ok = _at_least(RATE / beta0, measured)
    first = min(beta0 / 2, cap)
    stable = first <= 2 / L
    rate = Row(
        f"{name}: mu_g beta0",
        rate_ok,
        number(mu * beta0),
        f">= {RATE}, for the rate 2^-k",
        ""
        if rate_ok
        else FEW
        if rate_ok is None
        else f"raise beta0 from {number(beta0)} to 1 / mu_g = {number(1 / mu)}",
    )
    remedy = "" if stable else f"give cap <= 1 / (2 L_g1) = {number(1 / (2 * L))}, or Problem(L_g1={number(1.1 * L)})"
    return [rate, Row(f"{name}: first step", stable, number(first), f"<= 2 / L_g1 = {number(2 / L)}", remedy)]


def _inverse(name: str, grads: np.ndarray, setup: Setup) -> Row:
    bias = relative_bias(grads, setup.exact.scale, 0.0)
    ok = bias.decided(setup.tol)
    mu, L = setup.measured.mu_g, setup.problem.L_g1 or setup.measured.L_g1
    enough = f" to about {default_N(mu, L)}" if mu > 0 else ""
    remedy = "" if ok is not False else f"raise N of the series{enough}, or take conjugate_gradient()"
    remedy = remedy or (VANISH if setup.exact.scale == 0 else "")
    return Row(f"{name}: inverse Hessian (N)", ok, f"bias {bias}", f"<= {percent(setup.tol)}", remedy)


def _bias(name: str, estimator: Estimator, setup: Setup) -> Row:
    """The estimator's mean against the exact gradient of the same contexts."""
    exact = setup.exact
    problem = only_contexts(setup.problem, exact.contexts)
    whole = batched(estimator, -(-setup.n // BATCHES))
    rows = np.zeros((0, exact.grads.shape[1]))
    for round_ in range(ROUNDS):
        key = random.fold_in(setup.key, 2 + round_)
        new = flat_rows(batch_means(key, problem, setup.x, estimator=whole, batches=BATCHES))
        rows = np.concatenate([rows, new])
        bias = relative_bias(rows - exact.grad, exact.scale, exact.stderr)
        ok = bias.decided(setup.tol)
        if ok is not None or exact.scale == 0:
            break
    along = rows.mean(0) @ exact.grad / max(exact.grad @ exact.grad, np.finfo(float).tiny)
    value = f"bias {bias}, {along:.2f} of the exact along it"
    return Row(f"{name}: gradient", ok, value, f"<= {percent(setup.tol)}", _advice(ok, along, bias, exact))


def _advice(ok: bool | None, along: float, bias: Bias, exact: Reference) -> str:
    if ok is None:
        return VANISH if exact.scale == 0 else "noise leaves it open: raise n"
    if ok:
        return ""
    if not np.isfinite(bias.high):
        return "estimates are not finite: smaller steps, or an L_g1 that bounds every sample's Hessian"
    if along < -0.5:
        return "it points the opposite way: look for a sign error"
    return "raise K, N or the number of samples; if the bias stays, a term of the gradient is wrong"
