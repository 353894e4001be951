"""What are an estimator's gradients worth where a run has ended? At x1, where `check` and `tune` looked, is not enough.

A bias that is small against terms that are huge at x1 may be most of the gradient at the result.
"""

from __future__ import annotations

import math
import re
import warnings
from typing import Any, NamedTuple

import numpy as np
from jax import random

from bilevelax.base.text_table import number, percent
from bilevelax.core.estimate import Estimator
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.bench import Bench
from bilevelax.diagnostics.bias import CONFIDENCE, Bias
from bilevelax.diagnostics.candidates import TUNED_CONTEXTS, Candidate, lanes_of
from bilevelax.diagnostics.contexts import takes_every
from bilevelax.diagnostics.intervals import squared_norm
from bilevelax.diagnostics.reference import QUICK, Reference, reference
from bilevelax.exact.unsolved import SOME, sentence

TOL = 0.05  # largest relative bias, as of `tune`
LAPS = 3  # measurements of 8 calls, after a first one
REMEDY = "take antithetic_mlmc(levels=None) or more samples, and go on from here with x1=result.x"


class Recheck(NamedTuple):
    """Bias, variance and ``|grad F|^2`` at one x, as `tune` measures the first two."""

    bias: Bias  # relative to the size of the gradient's terms
    variance: float  # of one call
    grad2: tuple[float, float, float]  # estimate and 95 % interval, from the contexts of the reference
    unsolved: float  # share of contexts whose follower has no minimum that was found

    @property
    def biased(self) -> bool:
        """Surely above the tolerance."""
        return self.bias.decided(TOL) is False

    def told(self, name: str) -> list[str]:
        """What is wrong and what to change; nothing if nothing is."""
        found = []
        if self.unsolved > SOME:
            found.append(sentence(self.unsolved, "the contexts looked at where the run ended"))
        if self.biased:
            size = f"{self.bias} of the gradient's terms" if math.isfinite(self.bias.high) else "not finite"
            found.append(
                f"Where the run ended the bias of {name} is {size}, more than {percent(TOL)}: x minimises another "
                f"function than F. |grad F| is about {number(math.sqrt(max(self.grad2[0], 0.0)))} there. "
                f"{REMEDY[0].upper()}{REMEDY[1:]}."
            )
        return found

    def asdict(self) -> dict[str, Any]:
        """The columns of `diagnosis`, as plain numbers; what is not finite is left out."""
        names = "bias", "bias_low", "bias_high", "grad2", "grad2_low", "grad2_high", "variance", "lower_unsolved"
        values = *self.bias[:3], *self.grad2, self.variance, self.unsolved
        return {name: float(v) for name, v in zip(names, values, strict=True) if math.isfinite(v)}


def recheck(problem: Problem, x: X, estimator: Estimator, *, key: Key, name: str = "", devices: int = 1) -> Recheck:
    """Measured by the programs of `tune`, where it chose the estimator called ``name``: then nothing is compiled."""
    exact = reference(random.fold_in(key, 0), problem, x, **QUICK)
    lanes = lanes_of(problem, TUNED_CONTEXTS, devices)[1]
    bench = Bench(problem, x, exact, random.fold_in(key, 1), lambda: math.inf, TOL, lanes)
    size = re.match(r"saa\(n=(\d+)\)", name)
    each = Candidate(name, estimator, n=int(size[1]) if size else None)
    if name.startswith("saa(n='all')"):
        lap = bench.exactly(each, LAPS)
    else:
        lap = bench.together(each, None, LAPS) if each.n else bench.alone(each, None, LAPS, timed=bool(name))
    trial = bench.trial(each, lap)
    return Recheck(trial.bias, trial.variance, _square(problem, exact), exact.unsolved)


def _square(problem: Problem, exact: Reference) -> tuple[float, float, float]:
    """|grad F|^2 by the exact gradients of some contexts; by those of all, only outcomes leave an error."""
    if not np.isfinite(exact.grads).all():
        return math.nan, math.nan, math.inf
    if not takes_every(problem, QUICK["contexts"]):
        return squared_norm(exact.grads, CONFIDENCE)
    size, reach = float(np.linalg.norm(exact.grad)), 2 * exact.stderr
    return size**2, max(size - reach, 0.0) ** 2, (size + reach) ** 2


def at_the_end(problem: Problem, x: X, estimator: Estimator, *, key: Key, name: str, devices: int) -> dict[str, Any]:
    """For the manifest of a run, with a warning where something is wrong; the run is never lost for it."""
    reason = _refused(problem, x, estimator)
    if reason:
        return {"skipped": reason}
    try:
        found = recheck(problem, x, estimator, key=key, name=name, devices=devices)
    except Exception as error:
        return {"skipped": f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"}
    told = found.told(name or "the estimator")
    for each in told:
        warnings.warn(each, RuntimeWarning, stacklevel=6)
    return {**found.asdict(), "told": told}


def _refused(problem: Problem, x: X, estimator: Estimator) -> str:
    if problem.source is not None:
        return "contexts are on disk"
    return "the estimator keeps a state between calls" if estimator.keeps_state(problem, x) else ""
