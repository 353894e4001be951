"""Certificates: a confidence interval of |grad F(x)|^2, and a rule that stops a run by it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.base.errors import require_integer, require_key, require_positive, require_share
from bilevelax.core.estimate import Estimator
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.estimates import BATCHES, batched, means, unbiased
from bilevelax.diagnostics.host import flat, flat_rows, unflat
from bilevelax.diagnostics.intervals import projected_norm, squared_norm
from bilevelax.diagnostics.reference import all_outcomes
from bilevelax.diagnostics.tails import Tails, alike, scouts_of, tails_of
from bilevelax.exact.unsolved import require_followers
from bilevelax.problems.reduced import reduced_to
from bilevelax.problems.validate import as_arrays, check_shapes

StopWhen = Callable[[Problem, X, Key], tuple[bool, dict[str, float]]]
Constraint = Callable[[X], X]


OF_GRADIENT, OF_PROJECTED = "|grad F|^2", "|x - P(x - grad F)|^2"
ESTIMATES = 1024  # by default
STORED = 16_384  # contexts with stored outcomes that are all looked at by default


class Certificate(NamedTuple):
    """An unbiased estimate of a squared gradient norm and its confidence interval; no interval where it is exact."""

    estimate: float  # may be negative: it is unbiased
    low: float
    high: float
    level: float
    n: int  # estimates used
    of: str  # "|grad F|^2"; with a constraint on x "|x - P(x - grad F)|^2"; "|E v|^2" where v may be biased

    told: str = ""  # why there is no interval, [0, inf], where contexts that are rare decide
    effective: float | None = None  # contexts that carry the noise, all n where they are alike; None: nothing was drawn

    @property
    def norm_high(self) -> float:
        """Upper end for the norm itself."""
        return float(np.sqrt(self.high))

    def __str__(self) -> str:
        if self.told:
            return f"{self.of} is about {self.estimate:.3g} from {self.n} estimates. {self.told}."
        of, _, which = self.of.partition(", ")
        note = f", {which}" if which else ""
        if self.low == self.estimate == self.high:
            how = f"exact: from {self.n} gradients without noise{note}"
            if self.effective is not None:
                how = f"the same in all {self.n} gradients drawn{note}; what is rare and was not met is not in it"
            return f"{of} = {self.estimate:.3g}, {how}."
        note += ", v being the estimator given: its bias is not in this interval" if "E v" in of else ""
        return (
            f"{of} = {self.estimate:.3g}, {100 * self.level:g} % interval [{self.low:.3g}, {self.high:.3g}] "
            f"from {self.n} estimates{note}."
        )


def certify(
    problem: Problem,
    x: X,
    *,
    key: Key,
    n: int | None = None,
    estimator: Estimator | None = None,
    level: float = 0.95,
    constraint: Constraint | None = None,
) -> Certificate:
    """``|grad F(x)|^2``: exact where all contexts and outcomes are stored, else with an interval.

    Elsewhere inner products of independent gradients are taken, which have mean ``|grad F|^2`` whatever their noise:
    an unbiased estimate whose interval holds at stationary points too. The n estimates are averaged in 32 batches,
    over each of which finitely many contexts are spread evenly. The interval's upper end
    allows for a gradient along the noise's main direction: it is cautious (up to about twice the
    jackknife's in the norm) where ``|grad F|`` is about the noise of the mean of all n, and the usual one
    where it is large against it. Of a `reduced` problem it is about the reduced F, and says so. Where rare contexts
    decide, so that fewer than 16 effective ones carry the noise, there is no interval: eight times as many contexts are
    looked at quickly to tell. Below 64 the interval allows for contexts beyond the largest met, by their tail's index.

    Args:
        n: estimates in all, rounded up to a multiple of 32; by default 1024. Of stored contexts and outcomes each is
            taken once and nothing is left to chance where n is None (up to 16,384 contexts) or not below their number.
        estimator: by default one without bias; with another the certificate is of ``|E v|^2``.
        level: of the interval, two-sided.
        constraint: ``x -> x``, the projection on the convex set that x is chosen from, as in `solve` and `projected`.
            The certificate is then of ``|x - P(x - grad F)|^2``, zero where F cannot be lowered inside the set.
    """
    require_key("certify", key)
    require_looks("certify", n, level)
    x = as_arrays("x", "certify", x)
    check_shapes(problem, x)
    return certifier(n, estimator, level, constraint)(problem, x, key)


def require_looks(owner: str, n: int | None, level: float) -> None:
    if n is not None:
        require_integer("n", owner, n, BATCHES)
    require_share("level", owner, level)


class Rows(NamedTuple):
    """How the rows of a certificate are made: so many means of ``each`` estimates."""

    mean: Estimator
    each: int
    batches: int


@functools.lru_cache(maxsize=16)
def rows_of(n: int | None, estimator: Estimator, given: bool, stored: bool, M: int | None) -> Rows:
    """One row of all there is where it is stored; else `BATCHES` independent means. Made, so compiled, once."""
    contexts = "independent" if M is None or given else "spread"
    each = -(-(n or ESTIMATES) // BATCHES)
    if given or not stored:
        return Rows(batched(estimator, each, contexts), each, BATCHES)
    # one context after another: none is lost among many rows
    whole = M is not None and (n or STORED) >= M
    each = M if whole and M else each
    return Rows(minibatch(all_outcomes(), each, "loop", contexts), each, 1 if whole else BATCHES)


def gradients(problem: Problem, x: X, key: Key, made: Rows, given: bool) -> tuple[np.ndarray, Tails | None]:
    """The rows and whose noise they have, or a sentence where some are not finite or a follower has no answer."""
    scouts = scouts_of(problem, x, made.each)
    found = means(key, problem, x, estimator=made.mean, batches=made.batches, scouts=scouts)
    rows = flat_rows(found.grad)
    broken = int(np.sum(~np.isfinite(rows).all(1)))
    if broken:
        few = "Usual cause: g has no minimum on 8 samples; give `estimator`, e.g. antithetic_mlmc(n0=64, levels=None)."
        raise ValueError(
            f"certify needs finite gradients at x. Got {broken} of {made.batches} batches that are not. "
            + ("Mend `estimator`, or see `check`." if given else few)
        )
    require_followers("certify", float(np.asarray(found.unsolved).mean()), "its solves")
    if made.batches == 1:
        return rows, None
    hidden = alike(rows, float(jnp.finfo(jnp.result_type(*jax.tree.leaves(found.grad))).eps))
    return rows, tails_of(np.asarray(found.lanes), np.asarray(found.scouts), hidden)


def certifier(
    n: int | None = None,
    estimator: Estimator | None = None,
    level: float = 0.95,
    constraint: Constraint | None = None,
) -> Callable[[Problem, X, Key], Certificate]:
    """`certify` for many looks."""

    def look(problem: Problem, x: X, key: Key) -> Certificate:
        given, stored = estimator is not None, (problem.support or problem.blocks) is not None
        made = rows_of(n, estimator or unbiased(problem), given, stored, problem.n_contexts)
        rows, tails = gradients(problem, x, key, made, given)
        if constraint is not None:
            found = projected_norm(rows, flat(x), lambda vector: flat(constraint(unflat(vector, x))), level)
        else:
            found = squared_norm(rows, level) if made.batches > 1 else (float(np.sum(rows**2)),) * 3
        used = made.each * made.batches
        about = level, used, measured(estimator, constraint) + reduced_to(problem)
        if tails is None:
            return Certificate(*found, *about, effective=float(used) if made.batches > 1 else None)
        # gradients that are all alike: of every context there is, or of those only that were met
        if tails.heavy and (found[1] < found[2] or problem.n_contexts is None):
            return Certificate(found[0], 0.0, np.inf, *about, str(tails), tails.effective)
        return Certificate(*tails.widened(found), *about, effective=tails.effective)

    return look


def measured(estimator: Estimator | None, constraint: Constraint | None) -> str:
    of = OF_GRADIENT if constraint is None else OF_PROJECTED
    return of if estimator is None else of.replace("grad F", "E v")


def certified(
    eps: float,
    n: int | None = None,
    estimator: Estimator | None = None,
    level: float = 0.95,
    constraint: Constraint | None = None,
) -> StopWhen:
    """A rule for ``minimize(..., stop_when=certified(eps))``: stop where ``|grad F(x)|`` is below eps.

    The interval's upper end must be below eps^2, twice in a row at the same x with independent
    draws: a run looks many times, and one look in forty would stop too early. The columns
    ``grad2``, ``grad2_low`` and ``grad2_high`` of the history hold the first certificate.

    Args:
        eps: the gradient norm to reach.
        n, estimator, level, constraint: as in `certify`.
    """
    require_positive("eps", "certified", eps)
    require_looks("certified", n, level)
    look = certifier(n, estimator, level, constraint)

    def stop_when(problem: Problem, x: X, key: Key) -> tuple[bool, dict[str, float]]:
        first = look(problem, x, random.fold_in(key, 0))
        stop = first.high <= eps**2 and look(problem, x, random.fold_in(key, 1)).high <= eps**2
        columns = {"grad2": first.estimate, "grad2_low": first.low, "grad2_high": first.high}
        return stop, {name: value for name, value in columns.items() if np.isfinite(value)}

    return stop_when
