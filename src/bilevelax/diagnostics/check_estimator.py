"""Rows of `check` on one estimator: its settings, each part of it alone, and its bias."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.text_table import number, percent
from bilevelax.core.double_loop import DoubleLoop
from bilevelax.core.estimate import Estimator, innermost
from bilevelax.core.inverse import default_N
from bilevelax.core.lower import lower_of
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.bias import Bias, relative_bias
from bilevelax.diagnostics.check_report import CheckRow
from bilevelax.diagnostics.constants import Constants
from bilevelax.diagnostics.estimates import BATCHES, batched, means, means_in_a_row
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.learned import learned_rows
from bilevelax.diagnostics.part_errors import PartErrors, part_errors
from bilevelax.diagnostics.reference import Reference

RATE = 0.739  # least mu_g beta0 for which EpochSGD's squared error falls as 2^-k
VANISH = "the gradient's terms vanish at this x: check at another, or start closer if init_y is far from y*"
TOO_FEW = "too few samples of eta to tell: raise samples"
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


def estimator_rows(name: str, estimator: Estimator, setup: Setup) -> list[CheckRow]:
    rows: list[CheckRow] = []
    try:
        rows += _settings(name, estimator, setup)
        rows += learned_rows(name, estimator, setup.problem, setup.x, setup.key, setup.tol)
        rows.append(_bias(name, estimator, setup))
    except ValueError as error:  # the library's own refusal of these settings says what to change
        rows.append(CheckRow(f"{name}: settings", False, "refused", "to run on this problem", str(error)))
    return rows


def at_least(value: float, measured: Constants) -> bool | None:
    """Is mu_g above ``value``? None where the samples behind it are too few to tell, or rounding hides it."""
    rounding = float(jnp.finfo(float).eps) * measured.L_g1
    return True if measured.mu_g > value + rounding else None if measured.mu_high > value else False


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
    ok = bias.judged(setup.tol)
    more = max(1.0, np.ceil(np.log2(max(bias.estimate / setup.tol, 2)))) if np.isfinite(bias.estimate) else 1.0
    remedy = f"raise K to about {K + int(more)}, or start closer with init_y" if ok is False else ""
    remedy = remedy or (VANISH if setup.exact.scale == 0 else "")
    value = f"bias {bias}, |y - y*| {number(found.error)} from {number(found.start)}"
    return CheckRow(f"{name}: lower level at K = {K}", ok, value, f"<= {percent(setup.tol)}", remedy)


def _steps(name: str, beta0: float, cap: float, measured: Constants) -> list[CheckRow]:
    mu, L = measured.mu_g, measured.L_g1
    rate_ok = at_least(RATE / beta0, measured)
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
    ok = bias.judged(setup.tol)
    mu, L = setup.measured.mu_g, setup.problem.L_g1 or setup.measured.L_g1
    enough = f" to about {default_N(mu, L)}" if mu > 0 else ""
    remedy = "" if ok is not False else f"raise N of the series{enough}, or take conjugate_gradient()"
    remedy = remedy or (VANISH if setup.exact.scale == 0 else "")
    return CheckRow(f"{name}: inverse Hessian (N)", ok, f"bias {bias}", f"<= {percent(setup.tol)}", remedy)


def _bias(name: str, estimator: Estimator, setup: Setup) -> CheckRow:
    """The estimator's mean against the exact gradient of the same contexts."""
    exact, each = setup.exact, -(-setup.n // BATCHES)
    where = setup.problem, setup.x, exact.contexts

    def estimates(key: Key) -> np.ndarray:
        if estimator.keeps_state(setup.problem, setup.x):
            found = means_in_a_row(key, *where, estimator=estimator, batches=BATCHES, each=each)[0]
            return flat_rows(found)
        new = means(key, *where, exact.grads, estimator=batched(estimator, each), batches=BATCHES)
        return flat_rows(new.grad) - np.asarray(new.met) + exact.grad  # less noise of contexts

    rows = np.zeros((0, exact.grads.shape[1]))
    for round_ in range(ROUNDS):
        rows = np.concatenate([rows, estimates(random.fold_in(setup.key, 2 + round_))])
        bias = relative_bias(rows - exact.grad, exact.scale, exact.stderr, len(exact.noise))
        ok = bias.judged(setup.tol)
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
