"""What `tune` chooses from: estimators by name, most promising first."""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from bilevelax.core.estimate import Estimator
from bilevelax.core.lower import epoch_sgd
from bilevelax.core.minibatch import minibatch
from bilevelax.core.problem import Problem
from bilevelax.diagnostics.averages import Lanes
from bilevelax.diagnostics.correction_rate import LEAST_RATE
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.exact.inverse import summed_neumann

TUNED_CONTEXTS = 32
SIZES = (32, 8, 128, 16, 64)  # of `saa`, all measured by one program
TYPICAL_RATE = 0.05  # of corrections to 8 samples
rare = partial(antithetic_mlmc, levels=2, factor=8)  # few, large corrections: half the work x variance of halvings


class Candidate(NamedTuple):
    """An estimator by name; ``weight`` is how long it compiles, roughly and relative to `saa`.

    ``n`` is the number by which the candidates of one program differ, where it is one of them.
    """

    name: str
    estimator: Estimator
    weight: float = 1.0
    n: int | None = None
    unbiased: bool = False  # by how it is made, but for what more samples than anybody draws would show

    def over(self, lanes: Lanes) -> Candidate:
        """The mean over so many contexts."""
        spread = f", {lanes.m} contexts" + ", spread" * (lanes.how == "spread")
        return self._replace(name=self.name + spread, estimator=minibatch(self.estimator, lanes.m, contexts=lanes.how))


def lanes_of(problem: Problem, contexts: int, devices: int = 1) -> tuple[Lanes, Lanes]:
    """The contexts of exact gradients, and of others.

    Of no more contexts than a minibatch has, each gets its share of it: once where its gradient is
    exact, so that a step takes the full batch, else as often as fills the minibatch.
    """
    n = problem.n_contexts
    full = lambda lanes, each: -(-lanes // each) * each  # up to a multiple
    once, often, how = (
        (contexts, contexts, "independent") if n is None or n > contexts else (n, full(contexts, n), "spread")
    )
    return Lanes(full(once, devices), how), Lanes(full(often, devices), how)


def candidates(problem: Problem, contexts: int, devices: int = 1, rate: float = TYPICAL_RATE) -> list[Candidate]:
    """Estimators that can run on the problem, most promising first; ``rate`` is that of corrections to 8 samples.

    Differences fall as 1 / n, and with them the best rate: a quarter of it for 32 samples.
    """
    once, often = lanes_of(problem, contexts, devices)
    exact = [] if problem.support is None else [Candidate("saa(n='all')", saa("all"), unbiased=True).over(once)]
    named = [Candidate(f"saa(n={n})", saa(n), n=n) for n in SIZES]
    for n0, own in ((8, rate), (32, max(rate / 4, LEAST_RATE))):
        name = f"antithetic_mlmc(n0={n0}, correction_rate={own:.3g})"
        named.append(Candidate(name, rare(n0, correction_rate=float(f"{own:.3g}")), 2.5, unbiased=True))
    if problem.mu_g is not None and problem.L_g1 is not None:
        lower, inverse = problem.lower or epoch_sgd(batch=8), problem.inverse or summed_neumann()
        named += [
            Candidate("rt_mlmc(K=8), 8 samples a draw", rt_mlmc(8, lower, inverse, batch=8), 5.0),
            Candidate("rt_mlmc(K=8)", rt_mlmc(8), 5.0),
        ]
    return [*exact, *(each.over(often) for each in named)]


def named_candidate(problem: Problem, choice: str, devices: int) -> Estimator:
    """The candidate that `tune` called by this name, in which the pilot's rate is told."""
    told = re.match(r"antithetic_mlmc\(n0=(8|32), correction_rate=([0-9.e-]+)\)(.*)", choice)
    if told is not None:
        estimator = rare(int(told[1]), correction_rate=float(told[2]))
        return Candidate("", estimator).over(lanes_of(problem, TUNED_CONTEXTS, devices)[1]).estimator
    named = candidates(problem, TUNED_CONTEXTS, devices)
    older = ((8, 0.05), (32, 0.01))  # rates of 0.1.0, which its names did not tell
    lanes = lanes_of(problem, TUNED_CONTEXTS, devices)[1]
    named += [Candidate(f"antithetic_mlmc(n0={n})", rare(n, correction_rate=rate)).over(lanes) for n, rate in older]
    return {each.name: each.estimator for each in named}[choice]
