"""How good is the estimator where the run stands? Columns for the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import random

from bilevelax.base.compiling import program
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X, Xi
from bilevelax.diagnostics.bias import relative_bias
from bilevelax.diagnostics.certify import certifier
from bilevelax.diagnostics.estimates import Means, means
from bilevelax.diagnostics.host import flat_rows
from bilevelax.diagnostics.reference import QUICK, reference

DIAGNOSED_CALLS = 32  # of the estimator, behind its bias and variance


@program(static_argnames=("estimator",))
def _calls(key: Key, problem: Problem, x: X, contexts: Xi, grads: Any, estimator: Estimator) -> Means:
    return means(key, problem, x, contexts, grads, estimator=estimator, batches=DIAGNOSED_CALLS)


def diagnosis(estimator: Estimator) -> Callable[[Problem, X, Key], dict[str, float]]:
    """``(problem, x, key) ->`` columns that tell what the estimator's gradients are worth at x.

    ``bias``, ``bias_low`` and ``bias_high``: relative to the size of the gradient's terms, with a
    95 % interval, against exact gradients of 32 contexts; ``variance``: of one call, the trace of
    its covariance over these contexts; ``call_seconds``: of one call; ``grad2``, ``grad2_low`` and
    ``grad2_high``: a certificate of |grad F(x)|^2 by the unbiased estimator (see `certify`). What is not
    finite is left out, e.g. the bias where the gradient's terms vanish.
    """
    look = certifier()

    def look_at(problem: Problem, x: X, key: Key) -> dict[str, float]:
        _require_stateless(estimator, problem, x)
        exact = reference(random.fold_in(key, 0), problem, x, **QUICK)
        measure = lambda i: _calls(random.fold_in(key, i), problem, x, exact.contexts, exact.grads, estimator)
        jax.block_until_ready(measure(1))  # compiles the first time
        started = time.perf_counter()
        found = jax.block_until_ready(measure(2))
        seconds = (time.perf_counter() - started) / DIAGNOSED_CALLS
        rows = flat_rows(found.grad)
        bias = relative_bias(rows - np.asarray(found.met), exact.scale, exact.stderr)
        proof = look(problem, x, random.fold_in(key, 3))
        columns = {
            "bias": bias.estimate,
            "bias_low": bias.low,
            "bias_high": bias.high,
            "variance": rows.var(0, ddof=1).sum(),
            "call_seconds": seconds,
            "grad2": proof.estimate,
            "grad2_low": proof.low,
            "grad2_high": proof.high,
        }
        return {name: float(value) for name, value in columns.items() if np.isfinite(value)}

    return look_at


def _require_stateless(estimator: Estimator, problem: Problem, x: X) -> None:
    if estimator.keeps_state(problem, x):
        raise ValueError(
            "`diagnose` of minimize needs an estimator that keeps no state between calls. This one does; "
            "leave diagnose out, or measure rt_mlmc, dl_sgd or saa."
        )
