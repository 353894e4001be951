"""From checked rows to the data of the problem: scaling, the conditional distribution, atoms."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from bilevelax.sklearn._problem import Rows, rows_of
from bilevelax.sklearn._weights import Conditional
from bilevelax.sklearn.conditional import make_conditional

OWNER = "RobustNewsvendor"
BLOCK = 2**14  # rows
FEW = 5.0  # an effective sample size below this is worth a warning


class Scaling(NamedTuple):
    """Centre and deviation of columns (constant ones: 1), and the range in which they were seen."""

    centre: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, a: np.ndarray, weights: np.ndarray) -> Scaling:
        shares = weights / weights.sum()
        centre = shares @ a
        parts = (slice(start, start + BLOCK) for start in range(0, len(a), BLOCK))  # never a second copy of the rows
        scale = np.sqrt(sum(shares[part] @ (a[part] - centre) ** 2 for part in parts))
        scale = np.where(scale > 1e-12 * (1 + np.abs(centre)), scale, 1.0)
        return cls(centre, scale, a.min(axis=0), a.max(axis=0))

    def forth(self, a: np.ndarray) -> np.ndarray:
        return (a - self.centre) / self.scale

    def clipped(self, a: np.ndarray) -> np.ndarray:
        """Standardised after moving what lies outside the range to its edge: a rule does not extrapolate."""
        return self.forth(np.clip(a, self.low, self.high))

    def back(self, a: np.ndarray) -> np.ndarray:
        return a * self.scale + self.centre


class Sample(NamedTuple):
    """Checked training rows."""

    X: np.ndarray
    y: np.ndarray  # (rows, outputs)
    holding: np.ndarray
    backlog: np.ndarray
    weights: np.ndarray

    def take(self, rows: Any) -> Sample:
        return Sample(*(a[rows] for a in self._asdict().values()))

    def thinned(self, most: int) -> Sample:
        """At most that many of the rows, evenly spaced."""
        n = len(self.y)
        return self if n <= most else self.take(np.linspace(0, n - 1, most).astype(int))


class Prepared(NamedTuple):
    """What training and prediction need beside the rule."""

    contexts: Scaling
    demands: Scaling
    unit: float  # mean of (h + b) times the deviation of demand, added up over outputs: one unit of cost
    conditional: Any


def prepare(sample: Sample, conditional: Any, seed: int) -> Prepared:
    """Scales of the rows and the conditional distribution fitted on them."""
    contexts, demands = Scaling.of(sample.X, sample.weights), Scaling.of(sample.y, sample.weights)
    per_row = ((sample.holding + sample.backlog) * demands.scale).sum(axis=1)
    unit = float(np.average(per_row, weights=sample.weights))
    return Prepared(
        contexts, demands, unit, make_conditional(conditional, OWNER).fit(sample.X, sample.y, random_state=seed)
    )


def warn_of_few(conditional: Any, X: np.ndarray) -> None:
    """Warn where a typical context rests on very few demands."""
    if isinstance(conditional, Conditional) and not conditional.votes_for_itself:
        size = float(np.median(conditional.effective_sample_size(X[:: max(1, len(X) // 200)])))
        if size < FEW:
            warnings.warn(
                f"`conditional` of {OWNER} rests on about {size:.1f} demands a context, which is few: expect noise "
                "or give more rows or a smoother conditional.",
                stacklevel=4,
            )


def atoms_of(conditional: Any, X: np.ndarray, k: int, seed: int, own: np.ndarray | None) -> np.ndarray:
    """k equally likely demands (rows, k, outputs) at each context."""
    if isinstance(conditional, Conditional):
        return conditional.atoms(X, k, own=own)
    drawn = np.asarray(conditional.sample(X, k, random_state=seed), float)
    return np.sort(drawn.reshape(len(X), k, -1), axis=1)


def problem_rows(
    prepared: Prepared, sample: Sample, k: int, together: bool, seed: int, own: np.ndarray | None, least: int
) -> Rows:
    """The rows in standardised units.

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
    atoms = atoms_of(prepared.conditional, sample.X, k, seed, own)
    atoms = prepared.demands.forth(atoms)
    per_unit = prepared.demands.scale / prepared.unit
    return rows_of(
        prepared.contexts.clipped(sample.X),
        np.moveaxis(atoms, 1, 2)[:, None] if together else atoms[..., None],
        sample.holding * per_unit,
        sample.backlog * per_unit,
        sample.weights,
        least,
    )
