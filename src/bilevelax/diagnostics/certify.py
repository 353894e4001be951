"""Certificates: a confidence interval of |grad F(x)|^2, and a rule that stops a run by it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import random

from bilevelax.base.errors import require_integer, require_key, require_positive, require_share
from bilevelax.core.estimate import Estimator
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.estimates import BATCHES, batch_means, batched, unbiased
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.intervals import squared_norm
from bilevelax.diagnostics.reference import all_outcomes
from bilevelax.problems.validate import as_arrays, check_shapes

StopWhen = Callable[[Problem, X, Key], tuple[bool, dict[str, float]]]


class Certificate(NamedTuple):
    """An unbiased estimate of a squared gradient norm and its confidence interval."""

    estimate: float  # may be negative: it is unbiased
    low: float
    high: float
    level: float
    n: int  # estimates used
    of: str  # "|grad F|^2", or "|E v|^2" where the estimator may be biased

    @property
    def norm_high(self) -> float:
        """Upper end for the norm itself."""
        return float(np.sqrt(self.high))

    def __str__(self) -> str:
        note = "" if self.of == "|grad F|^2" else ", v being the estimator given: its bias is not in this interval"
        return (
            f"{self.of} = {self.estimate:.3g}, {100 * self.level:g} % interval [{self.low:.3g}, {self.high:.3g}] "
            f"from {self.n} estimates{note}."
        )


def certify(
    problem: Problem, x: X, *, key: Key, n: int = 1024, estimator: Estimator | None = None, level: float = 0.95
) -> Certificate:
    """An unbiased estimate of ``|grad F(x)|^2`` with a confidence interval that holds at stationary points too.

    Inner products of independent gradients have mean ``|grad F|^2`` whatever their noise. The n estimates
    are averaged in 32 batches, over each of which finitely many contexts are spread evenly; where all
    outcomes are stored too, 32 ``n_contexts`` estimates leave nothing to chance. The interval's upper end
    allows for a gradient along the noise's main direction: it is cautious (up to about twice the
    jackknife's in the norm) where ``|grad F|`` is about the noise of the mean of all n, and the usual one
    where it is large against it.

    Args:
        n: estimates in all, rounded up to a multiple of 32.
        estimator: by default one without bias; with another the certificate is of ``|E v|^2``.
        level: of the interval, two-sided.
    """
    require_key("certify", key)
    require_integer("n", "certify", n, BATCHES)
    require_share("level", "certify", level)
    x = as_arrays("x", "certify", x)
    check_shapes(problem, x)
    return certifier(n, estimator, level)(problem, x, key)


def _certify(problem: Problem, x: X, key: Key, whole: Estimator, each: int, level: float, exact: bool) -> Certificate:
    rows = flat_rows(batch_means(key, problem, x, estimator=whole, batches=BATCHES))
    broken = int(np.sum(~np.isfinite(rows).all(1)))
    if broken:
        few = "Usual cause: g has no minimum on 8 samples; give `estimator`, e.g. antithetic_mlmc(n0=64, levels=None)."
        raise ValueError(
            f"certify needs finite gradients at x. Got {broken} of {BATCHES} batches that are not. "
            + (few if exact else "Mend `estimator`, or see `check`.")
        )
    return Certificate(
        *squared_norm(rows, level), level=level, n=each * BATCHES, of="|grad F|^2" if exact else "|E v|^2"
    )


@functools.lru_cache(maxsize=16)
def certifier(
    n: int = 1024, estimator: Estimator | None = None, level: float = 0.95
) -> Callable[[Problem, X, Key], Certificate]:
    """`certify` for many looks: its estimator is made, and so compiled, once for equal arguments."""
    each = -(-n // BATCHES)
    made: dict[tuple[bool, bool], Estimator] = {}

    def look(problem: Problem, x: X, key: Key) -> Certificate:
        known = problem.support is not None, problem.n_contexts is not None and estimator is None
        if known not in made:
            contexts = "spread" if known[1] else "independent"
            exact = known[0] and estimator is None  # one context after another, so that none is lost among many rows
            made[known] = (
                minibatch(all_outcomes(), each, "loop", contexts)
                if exact
                else batched(estimator or unbiased(problem), each, contexts)
            )
        return _certify(problem, x, key, made[known], each, level, estimator is None)

    return look


def certified(eps: float, n: int = 1024, estimator: Estimator | None = None, level: float = 0.95) -> StopWhen:
    """A rule for ``minimize(..., stop_when=certified(eps))``: stop where ``|grad F(x)|`` is below eps.

    The interval's upper end must be below eps^2, twice in a row at the same x with independent
    draws: a run looks many times, and one look in forty would stop too early. The columns
    ``grad2``, ``grad2_low`` and ``grad2_high`` of the history hold the first certificate.

    Args:
        eps: the gradient norm to reach.
        n, estimator, level: as in `certify`.
    """
    require_positive("eps", "certified", eps)
    require_integer("n", "certified", n, BATCHES)
    require_share("level", "certified", level)
    look = certifier(n, estimator, level)

    def stop_when(problem: Problem, x: X, key: Key) -> tuple[bool, dict[str, float]]:
        first = look(problem, x, random.fold_in(key, 0))
        stop = first.high <= eps**2 and look(problem, x, random.fold_in(key, 1)).high <= eps**2
        return stop, {"grad2": first.estimate, "grad2_low": first.low, "grad2_high": first.high}

    return stop_when
