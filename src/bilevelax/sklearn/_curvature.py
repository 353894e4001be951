r"""From which penalty on the adversary's problem is strongly concave.

With y in units in which the penalty is |y|^2 / 2, the Hessian of the lower level is I - e / (2 lambda), e the
Hessian of the expected cost in the context (in column scales): positive as long as lambda exceeds half the largest
eigenvalue of e.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jax import random

from bilevelax.applications.newsvendor import rows as _problem
from bilevelax.core.problem import Key, X
from bilevelax.exact.curvature import curvature
from bilevelax.sklearn._training import OWNER

LANCZOS = 12  # steps: the largest eigenvalue stands far off the others
ROLE = 2**31 - 1  # of the key, beside the numbers of the penalties


def least_penalty(
    losses: _problem.Losses, rows: dict[str, Any], scales: np.ndarray, penalty: float, x: X, key: Key
) -> float:
    """Half the largest eigenvalue of e over 64 contexts, at each and along the adversary's first two steps.

    Args:
        losses, rows, scales: of the problem, with the factors of the movable columns.
        penalty: under which the adversary steps.
        x: the policy.
        key: of the contexts.
    """
    if not scales.any():
        return 0.0
    penalty = penalty if np.isfinite(penalty) else 1.0
    problem = _problem.newsvendor_problem(losses, _problem.with_penalty(_problem.Rows(**rows), scales, penalty))
    smallest = curvature(problem, x, key=random.fold_in(key, ROLE), steps=LANCZOS).smallest
    return penalty * (1 - smallest)


def warn_of_curvature(least: float, penalty: float) -> None:
    """Say that a penalty is too small for the theory."""
    if penalty < least:
        warnings.warn(
            f"`penalty` of {OWNER} is {penalty:g}, but the adversary's problem is strongly concave only from about "
            f"{least:.2g} on: below it the worst case may not be found and no guarantee holds. Take a penalty of at "
            f"least {least:.2g}, or 'cv'.",
            stacklevel=4,
        )
