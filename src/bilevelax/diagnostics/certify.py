"""Certificates: a confidence interval of |grad F(x)|^2, and a rule that stops a run by it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.compiling import jit_once
from bilevelax.diagnostics.intervals import squared_norm
from bilevelax.diagnostics.reference import flat_rows
from bilevelax.errors import require_integer, require_key, require_positive, require_share
from bilevelax.estimate import Estimator
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.minibatch import minibatch
from bilevelax.problem import Key, Problem, PyTree, X
from bilevelax.validate import as_arrays, check_shapes

BATCHES = 32  # independent means that the interval is made of
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


@jit_once(static_argnames=("estimator", "batches"))
def batch_means(key: Key, problem: Problem, x: X, *, estimator: Estimator, batches: int) -> PyTree:
    """Independent estimates, stacked, one after another: a vmap would run each to the longest level."""

    def one(i: jax.Array) -> X:
        return estimator.estimate(random.fold_in(key, i), problem, x, estimator.init(problem, x))[0].grad

    return lax.map(one, jnp.arange(batches, dtype=jnp.int32))


def unbiased(problem: Problem) -> Estimator:
    """The estimator without bias: on all outcomes where they are known, else antithetic without end."""
    return saa("all") if problem.support is not None else antithetic_mlmc(levels=None)


def batched(estimator: Estimator, n: int, contexts: str = "independent") -> Estimator:
    """The mean of n estimates; of a minibatch one after another: a vmap over its random levels would undo them."""
    return minibatch(estimator, n, "stratified" if estimator.batch is None else "loop", contexts)


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
            made[known] = batched(estimator or unbiased(problem), each, "spread" if known[1] else "independent")
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
