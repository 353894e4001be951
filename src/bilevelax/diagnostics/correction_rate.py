"""How often should `antithetic_mlmc` correct? Measured on the problem at hand."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevelax.compiling import jit_once
from bilevelax.diagnostics.reference import flat_rows
from bilevelax.errors import require_integer, require_key
from bilevelax.estimate import Cost, Estimate, Estimator
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.minibatch import lane_keys
from bilevelax.problem import Key, Problem, X
from bilevelax.validate import as_arrays, check_shapes

LEAST = 1e-3  # a pilot may see no difference at all: the mean must stay that of the deepest level
MOST = 0.5  # the pilot's own rate


@jit_once(static_argnames=("estimator", "contexts"))
def _pilot(key: Key, problem: Problem, x: X, *, estimator: Estimator, contexts: int) -> tuple[Estimate, Estimate]:
    """Estimates of the same draws without and with the correction of level 1."""
    levels = estimator.levels
    assert levels is not None
    keys, none = lane_keys(key, contexts), jnp.zeros(0, jnp.int32)
    at = lambda level: levels.at_levels((level,) * contexts, none, keys, problem, x)
    return at(0), at(1)


def _work(cost: Cost) -> float:
    """Samples of eta drawn and derivatives taken."""
    return float(sum(np.sum(np.asarray(calls, float)) for name, calls in cost.asdict().items() if name != "xi"))


def correction_rate(
    problem: Problem,
    x: X,
    *,
    key: Key,
    n0: int = 8,
    levels: int | None = 6,
    factor: int = 2,
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
    estimator = antithetic_mlmc(n0, 2, MOST, factor=factor, **settings)
    assert estimator.levels is not None
    base, corrected = _pilot(key, problem, x, estimator=estimator, contexts=contexts)
    phi = flat_rows(base.grad)
    delta = estimator.levels.probabilities[1] * (flat_rows(corrected.grad) - phi)
    V_0 = phi.var(0, ddof=1).sum()
    V_1 = np.mean(np.sum(delta**2, axis=1))
    C_0, C_1 = _work(base.cost), _work(corrected.cost) - _work(base.cost)
    if V_0 <= 0:
        return MOST
    ratio = factor**-1.5
    tail = (1 - ratio ** (levels or np.inf)) / (1 - ratio)
    return float(np.clip(tail * np.sqrt(V_1 / V_0 * C_0 / C_1), LEAST, MOST))
