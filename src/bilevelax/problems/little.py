"""How much there is to compute: where it is little, a program is sooner compiled than optimised."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import random

from bilevelax.core.double_loop import DoubleLoop
from bilevelax.core.estimate import Estimator, innermost
from bilevelax.core.problem import Key, Problem, X
from bilevelax.problems.validate import outcome

LITTLE = 1024  # numbers that a solve handles for a sample, below which compiling it takes longer than running it
SAMPLES = 1024  # of a context, in that count
STEPS = 1000  # of a run: beyond, what an optimised step saves is more than its program takes to compile
RULES = 2**14  # numbers in x, up to which steps of gradients alone (`envelope`) run as fast where they compile sooner
ALL_STEPS = 10_000_000  # numbers that all solves of a run handle for a sample


def handled(problem: Problem, x: X) -> float:
    """Numbers that a solve of this problem handles for a sample: products of its d_y directions with x, y, eta."""

    def sizes(x: X) -> tuple[Any, Any]:
        key = random.key(0)
        xi = problem.context(key)
        stored = problem.support is not None
        return problem.start(x, xi), problem.outcomes(xi)[0] if stored else outcome(key, xi, problem)

    count = lambda tree: sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
    y, eta = map(count, jax.eval_shape(sizes, x))
    return y * (count(x) + y + (eta / SAMPLES if problem.support is not None else eta))


def little_work(key: Key, problem: Problem, x: X, *_: Any) -> bool:
    """Whether a program that solves this problem in some contexts is sooner compiled than optimised.

    By measurement (`python benchmarks/run.py compiles`).
    """
    return handled(problem, x) <= LITTLE


def how_to_compile(problem: Problem, estimator: Estimator, x: X, T: int | None = None) -> str:
    """The program of T steps: ``optimised``; ``small``, sooner compiled and as fast; or ``at once``, not optimised.

    The last where an estimator that solves its followers is soon done. By measurement (`python benchmarks/run.py ridge
    latency`; of `envelope`, a newsvendor's fit). Epochs of SGD are long loops, in which optimisation pays; so do steps
    without a known end.
    """
    if getattr(innermost(estimator).settings, "light", False):
        return "small" if sum(leaf.size for leaf in jax.tree.leaves(x)) <= RULES else "optimised"
    each = handled(problem, x)
    if each > LITTLE:
        return "optimised"
    if T is None or T > STEPS or isinstance(innermost(estimator).settings, DoubleLoop):
        return "small"
    return "at once" if T * getattr(estimator.settings, "m", 1) * each <= ALL_STEPS else "small"
