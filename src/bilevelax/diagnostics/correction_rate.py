"""How often should `antithetic_mlmc` correct? Measured on the problem at hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevelax.base.compiling import jit_solves
from bilevelax.base.errors import require_integer, require_key
from bilevelax.core.estimate import Cost, Estimate, Estimator
from bilevelax.core.minibatch import lane_keys
from bilevelax.core.problem import Key, Problem, X
from bilevelax.diagnostics.host import flat_rows
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.problems.little import little_work
from bilevelax.problems.validate import as_arrays, check_shapes

LEAST_RATE = 1e-3  # a pilot may see no difference at all: the mean must stay that of the deepest level
MOST_RATE = 0.5  # the pilot's own rate


@jit_solves(little_work, static_argnames=("estimator", "contexts"))
def _pilot(key: Key, problem: Problem, x: X, *, estimator: Estimator, contexts: int) -> tuple[Estimate, Estimate]:
    """Estimates of the same draws without and with the correction of level 1."""
    levels = estimator.levels
    assert levels is not None
    keys = lane_keys(key, contexts)
    at = lambda level: levels.at_levels(jnp.full(contexts, level, jnp.int32), keys, problem, x)
    both = lax.map(at, jnp.arange(2, dtype=jnp.int32))  # the solver is compiled once
    base, corrected = (jax.tree.map(lambda a: a[level], both) for level in range(2))  # noqa: B023 (used at once)
    return base, corrected


def work(cost: Cost) -> float:
    """Samples of eta drawn and derivatives taken."""
    return float(sum(np.sum(np.asarray(calls, float)) for name, calls in cost.asdict().items() if name != "xi"))


def least_work(phi: np.ndarray, delta: np.ndarray, C_0: float, C_1: float, levels: int | None, factor: int) -> float:
    """The rate of `correction_rate`, from rows of Phi_0 and Delta_1 and from their work."""
    V_0 = phi.var(0, ddof=1).sum()
    V_1 = np.mean(np.sum(delta**2, axis=1))
    if V_0 <= 0:
        return MOST_RATE
    ratio = factor**-1.5
    tail = (1 - ratio ** (levels or np.inf)) / (1 - ratio)
    return float(np.clip(tail * np.sqrt(V_1 / V_0 * C_0 / C_1), LEAST_RATE, MOST_RATE))


def correction_rate(
    problem: Problem,
    x: X,
    *,
    key: Key,
    n0: int | None = None,
    levels: int | None = 2,
    factor: int = 8,
    contexts: int = 128,
    **settings: Any,
) -> float:
    r"""The ``correction_rate`` of `antithetic_mlmc` with the least work x variance at x, from a pilot.

    .. math::
        p_l = \sqrt{\frac{E|\Delta_l|^2}{\mathrm{Var}\,\Phi_0} \cdot \frac{C_0}{C_l}}, \qquad
        r = \sum_{l \ge 1} p_l

    minimises :math:`(V_0 + \sum V_l / p_l)(C_0 + \sum p_l C_l)`. Levels 0 and 1 are measured; the others
    follow from :math:`E|\Delta_l|^2 \propto M^{-2l}` and :math:`C_l \propto M^l`, which give the default exponent
    1.5. Where the bias of ``saa(n0)`` is small, corrections become rare and the estimate costs what `saa` does.
    The mean does not depend on the rate.

    Args:
        n0, levels, factor: as in `antithetic_mlmc`.
        contexts: of the pilot.
        settings: further arguments of `antithetic_mlmc`.
    """
    require_key("correction_rate", key)
    require_integer("contexts", "correction_rate", contexts, 2)
    if levels is not None:
        require_integer("levels", "correction_rate", levels, 1)
    x = as_arrays("x", "correction_rate", x)
    check_shapes(problem, x)
    # of two levels, since `exact_top` would make a single one the last
    estimator = antithetic_mlmc(n0, 2, MOST_RATE, factor=factor, **settings)
    assert estimator.levels is not None
    base, corrected = _pilot(key, problem, x, estimator=estimator, contexts=contexts)
    phi = flat_rows(base.grad)
    delta = estimator.levels.probabilities[1] * (flat_rows(corrected.grad) - phi)
    C_0, C_1 = work(base.cost), work(corrected.cost) - work(base.cost)
    return least_work(phi, delta, C_0, C_1, levels, factor)
