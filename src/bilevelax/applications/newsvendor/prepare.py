"""From checked rows to the data of the problem: scaling, the conditional distribution, atoms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.padding import bucket, padded
from bilevelax.applications.newsvendor.weights import Conditional, within_fences

if TYPE_CHECKING:
    from bilevelax.applications.newsvendor.rows import Rows

SCALED = 2**14  # rows


class Scaling(NamedTuple):
    """Centre and deviation of columns (constant ones: 1), and the range in which they were seen."""

    centre: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, a: np.ndarray, weights: np.ndarray, fenced: bool = False) -> Scaling:
        """Of these columns; ``fenced``: no single value, such as a typo, moves centre and deviation."""
        low, high = a.min(axis=0), a.max(axis=0)
        a = within_fences(a) if fenced else a
        shares = weights / weights.sum()
        centre = shares @ a
        parts = (slice(start, start + SCALED) for start in range(0, len(a), SCALED))  # never a second copy of the rows
        scale = np.sqrt(sum(shares[part] @ (a[part] - centre) ** 2 for part in parts))
        scale = np.where(scale > 1e-12 * (1 + np.abs(centre)), scale, 1.0)
        return cls(centre, scale, low, high)

    def forth(self, a: np.ndarray) -> np.ndarray:
        return (a - self.centre) / self.scale

    def clipped(self, a: np.ndarray) -> np.ndarray:
        """Standardised after moving what lies outside the range to its edge: a rule does not extrapolate."""
        return self.forth(np.clip(a, self.low, self.high))

    def back(self, a: np.ndarray) -> np.ndarray:
        return a * self.scale + self.centre


class WeightedDemands(NamedTuple):
    """Checked training rows."""

    X: np.ndarray
    y: np.ndarray  # (rows, outputs)
    holding: np.ndarray
    backlog: np.ndarray
    weights: np.ndarray

    def take(self, rows: Any) -> WeightedDemands:
        return WeightedDemands(*(a[rows] for a in self._asdict().values()))

    def thinned(self, most: int) -> WeightedDemands:
        """At most that many of the rows, evenly spaced."""
        n = len(self.y)
        return self if n <= most else self.take(np.linspace(0, n - 1, most).astype(int))


class Prepared(NamedTuple):
    """What training and prediction need beside the rule."""

    contexts: Scaling
    demands: Scaling
    unit: float  # mean of (h + b) times the deviation of demand, added up over outputs: one unit of cost
    conditional: Any


def prepare(sample: WeightedDemands, conditional: Any, seed: int) -> Prepared:
    """Scales of the rows and the conditional distribution fitted on them."""
    contexts, demands = Scaling.of(sample.X, sample.weights), Scaling.of(sample.y, sample.weights, fenced=True)
    per_row = ((sample.holding + sample.backlog) * demands.scale).sum(axis=1)
    unit = float(np.average(per_row, weights=sample.weights))
    return Prepared(contexts, demands, unit, conditional.fit(sample.X, sample.y, random_state=seed))


def atoms_of(conditional: Any, X: np.ndarray, k: int, seed: int, own: np.ndarray | None) -> np.ndarray:
    """k equally likely demands (rows, k, outputs) at each context."""
    if isinstance(conditional, Conditional):
        return conditional.atoms(X, k, own=own)
    drawn = np.asarray(conditional.sample(X, k, random_state=seed), float)
    return np.sort(drawn.reshape(len(X), k, -1), axis=1)


def problem_rows(
    prepared: Prepared, sample: WeightedDemands, k: int, together: bool, seed: int, own: np.ndarray | None, least: int
) -> Rows:
    """The rows in standardised units and the default precision, under an infinite penalty.

    Args:
        prepared: scales and conditional.
        sample: rows; its demands are not read.
        k: atoms of each row.
        together: one outcome of all atoms, over which the gradient takes exact means; else one
            outcome for each atom.
        seed: of a conditional that samples.
        own: the rows' numbers among those that the conditional was fitted on; None for others.
        least: rows to pad to.
    """
    import jax.numpy as jnp  # here: orders from a stored model do not wait for it

    from bilevelax.applications.newsvendor.rows import Rows

    atoms = prepared.demands.forth(atoms_of(prepared.conditional, sample.X, k, seed, own))
    atoms = np.moveaxis(atoms, 1, 2)[:, None] if together else atoms[..., None]
    per_unit = prepared.demands.scale / prepared.unit
    cdf = np.cumsum(sample.weights) / sample.weights.sum()
    cdf[np.flatnonzero(sample.weights)[-1] :] = 1.0
    n, dtype = bucket(len(cdf), least), jnp.result_type(float)
    costs = sample.holding * per_unit, sample.backlog * per_unit
    leaves = (padded(a, n) for a in (prepared.contexts.clipped(sample.X), atoms, *costs))
    return Rows(
        *(np.asarray(a, dtype) for a in (*leaves, padded(cdf, n, 1.0), np.zeros(sample.X.shape[1]), np.zeros(())))
    )
