"""Orders that cover demand as often as they should: a conformal correction, in the order of time.

With r = demand - order on days held out, the correction of an output is the constant that is cheapest there,

.. math::
    d = \\arg\\min_d \\sum_i h_i (d - r_i)^+ + b_i (r_i - d)^+

the quantile of r at b / (h + b), of n days at (n + 1) / n times that: the next day is one more (split conformal
prediction). What it achieves is measured on days after those it was computed from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.loss import newsvendor_cost
from bilevelax.applications.newsvendor.prepare import WeightedDemands

LEAST_HELD = 10  # days
DEARER = 0.01  # share of the cost that a correction may add to later days


class Calibration(NamedTuple):
    """Each (outputs,); ``achieved`` is nan where no days came after those of the correction."""

    shift: np.ndarray
    target: np.ndarray
    before: np.ndarray  # service on the same days without correction
    achieved: np.ndarray


def correction(placed: np.ndarray, held: WeightedDemands) -> np.ndarray:
    """d of each output; 0 where there are few days."""
    rows, outputs = held.y.shape
    if rows < LEAST_HELD:
        return np.zeros(outputs)
    weights = held.weights[:, None] * (held.holding + held.backlog)
    levels = (held.weights[:, None] * held.backlog).sum(0) / weights.sum(0)
    levels *= 1 + (held.weights**2).sum() / held.weights.sum() ** 2  # 1 + 1 / n where all days count alike
    found = []
    for r, w, level in zip((held.y - placed).T, weights.T, levels, strict=True):
        order = np.argsort(r)
        share = np.cumsum(w[order]) / w.sum()
        found.append(r[order][min(np.searchsorted(share, level * (1 - 1e-9)), rows - 1)])
    return np.array(found)


def service(placed: np.ndarray, held: WeightedDemands) -> np.ndarray:
    """Share of the rows whose order covers demand."""
    return np.average(placed >= held.y - 1e-9 * np.abs(held.y), weights=held.weights, axis=0)


def service_target(sample: WeightedDemands) -> np.ndarray:
    """b / (h + b), the mean over rows."""
    return np.average(sample.backlog / (sample.holding + sample.backlog), weights=sample.weights, axis=0)


def calibrate(placed: list[np.ndarray], helds: list[WeightedDemands], target: np.ndarray) -> Calibration:
    """From orders for the held-out rows of each fold, in the order of time.

    The correction of all held-out days is kept where that of the earlier folds would not have made the last one
    dearer. No day moves it much: it is a quantile.
    """
    nothing = np.full(len(target), np.nan)
    if len(placed) < 2:
        return Calibration(np.zeros(len(target)), target, service(placed[-1], helds[-1]), nothing)
    last, held = placed[-1], helds[-1]
    earlier = correction(np.concatenate(placed[:-1]), joined(helds[:-1]))
    paid = [newsvendor_cost(w, held.y, held.holding, held.backlog).mean(0) for w in (last, last + earlier)]
    kept = paid[1] <= paid[0] * (1 + DEARER)
    shift = np.where(kept, correction(np.concatenate(placed), joined(helds)), 0.0)
    return Calibration(shift, target, service(last, held), service(last + np.where(kept, earlier, 0.0), held))


def joined(parts: list[WeightedDemands]) -> WeightedDemands:
    return WeightedDemands(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
