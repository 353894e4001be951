r"""Demand behind sales that ended with the stock: Kaplan and Meier's estimate with the weights of a conditional.

On a day that sold out, demand was at least what was sold. With weights w_i(xi) on past days, sales s_i and the days
E that did not sell out,

.. math:: P(D > s | \xi) = \prod_{i \in E, s_i \le s} \Bigl( 1 - \frac{w_i}{\sum_{j: s_j \ge s_i} w_j} \Bigr),

which is right where stock and demand are independent given the context (Kaplan and Meier 1958; Dabrowska 1989 for
weights). Efron (1967): the same law arises when the weight of a sold-out day is passed on to the days that sold more.
`demands` does that for each sold-out day: it becomes a demand from its own law beyond what was sold, so that whatever
learns from the rows afterwards needs to know nothing of stock-outs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

GOLDEN = (5**0.5 - 1) / 2  # multiples of it spread evenly: neighbouring days get different parts of the law
SWEEPS = 2  # the conditional is fitted to sales first, then to the demands that came of it


def kaplan_meier(W: sparse.csr_matrix, sales: np.ndarray, sold_out: np.ndarray) -> tuple[sparse.csr_matrix, np.ndarray]:
    """(weights (contexts, rows) of the law of demand, the weight of each context that lies beyond its largest sale)."""
    lines = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    values, lost = sales[W.indices], sold_out[W.indices]
    order = np.lexsort((lost, values, lines))  # of equal sales those that were demand come first
    w, seen = W.data[order], ~lost[order]
    ends = np.concatenate([[0.0], np.cumsum(w)])
    at_risk = ends[W.indptr[1:]][lines] - ends[:-1]
    hazard = np.where(seen & (w > 0), w / np.maximum(at_risk, 1e-300), 0.0).clip(0, 1)
    hazard = np.where(hazard > 1 - 1e-9, 1 - 1e-15, hazard)  # the last of a line: its logarithm stays finite
    logs = np.concatenate([[0.0], np.cumsum(np.log1p(-hazard))])
    survival = np.exp(logs[:-1] - logs[W.indptr[:-1]][lines])
    mass = np.empty_like(w)
    mass[order] = survival * hazard
    law = sparse.csr_matrix((mass, W.indices, W.indptr), shape=W.shape)
    beyond = np.exp(logs[W.indptr[1:]] - logs[W.indptr[:-1]])
    return law, np.where(beyond < 1e-9, 0.0, beyond)


class Pooled(NamedTuple):
    """The law of demand over all days alike."""

    values: np.ndarray  # ascending
    mass: np.ndarray
    beyond: float  # of the law, larger than every sale that is known to be a demand

    @classmethod
    def of(cls, sales: np.ndarray, sold_out: np.ndarray) -> Pooled:
        n = len(sales)
        law, beyond = kaplan_meier(sparse.csr_matrix(np.full((1, n), 1 / n)), sales, sold_out)
        order = np.argsort(sales, kind="stable")
        return cls(sales[order], law.toarray()[0][order], float(beyond[0]))

    def draw(self, above: float, u: float) -> float:
        """The demand at the share u of the law beyond ``above``; ``above`` itself where nothing is known there."""
        start = np.searchsorted(self.values, above, side="right")
        cdf = np.cumsum(self.mass[start:])
        if not len(cdf) or cdf[-1] <= 0:
            return above
        return float(self.values[start:][min(np.searchsorted(cdf, u * cdf[-1]), len(cdf) - 1)])


def demands(conditional: Any, X: np.ndarray, sales: np.ndarray, sold_out: np.ndarray, seed: int = 0) -> np.ndarray:
    """Sales (rows, outputs) with a demand in place of each that ended with the stock.

    Args:
        conditional: one of `weights.Conditional`, not fitted.
        X, sales: contexts and what was sold.
        sold_out: (rows, outputs), True where demand was at least that.
        seed: of the conditional.
    """
    found = np.array(sales, float)
    for _ in range(SWEEPS if sold_out.any() else 0):
        fitted = conditional.fit(X, found, random_state=seed)
        for j in range(sales.shape[1]):
            rows = np.flatnonzero(sold_out[:, j])
            found[rows, j] = _beyond(fitted, X, sales[:, j], sold_out[:, j], rows)
    return found


def beyond_sales(fitted: Any, X: np.ndarray, sales: np.ndarray, sold_out: np.ndarray) -> np.ndarray:
    """Sales of new rows with a demand in place of each that ended with the stock, by a conditional of demands."""
    found = np.array(sales, float)
    for j in range(sales.shape[1]):
        rows, past = np.flatnonzero(sold_out[:, j]), fitted.y_[:, j]
        if len(rows):
            pooled, start = Pooled.of(past, np.zeros(len(past), bool)), 0
            for W in fitted.in_chunks(X[rows]):
                for i in range(W.shape[0]):
                    line, row = slice(W.indptr[i], W.indptr[i + 1]), rows[start + i]
                    u = ((start + i + 0.5) * GOLDEN) % 1.0
                    found[row, j] = _draw(past[W.indices[line]], W.data[line], 0.0, sales[row, j], u, pooled)
                start += W.shape[0]
    return found


def _beyond(fitted: Any, X: np.ndarray, sales: np.ndarray, sold_out: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A demand for each of the sold-out ``rows``, from its law beyond what was sold."""
    kept_sales, kept_lost = sales[fitted.rows_], sold_out[fitted.rows_]
    pooled, drawn, start = Pooled.of(kept_sales, kept_lost), np.empty(len(rows)), 0
    for W in fitted.in_chunks(X[rows], rows):
        law, beyond = kaplan_meier(W, kept_sales, kept_lost)
        for i in range(law.shape[0]):
            line = slice(law.indptr[i], law.indptr[i + 1])
            u = ((start + i + 0.5) * GOLDEN) % 1.0
            drawn[start + i] = _draw(
                kept_sales[law.indices[line]], law.data[line], beyond[i], sales[rows[start + i]], u, pooled
            )
        start += law.shape[0]
    return drawn


def _draw(values: np.ndarray, mass: np.ndarray, beyond: float, sold: float, u: float, pooled: Pooled) -> float:
    above = values > sold
    order = np.argsort(values[above], kind="stable")
    cdf = np.cumsum(mass[above][order])
    inside = cdf[-1] if len(cdf) else 0.0
    wanted = u * (inside + beyond)
    if inside > 0 and wanted <= inside:
        at = min(int(np.searchsorted(cdf, wanted)), len(cdf) - 1)
        return float(values[above][order][at])
    largest = max(sold, float(values.max(initial=sold)))
    return pooled.draw(largest, (wanted - inside) / beyond if beyond > 0 else u)


def identified(sales: np.ndarray, sold_out: np.ndarray, level: float, name: str) -> str:
    """The rule in one sentence: an order at a level is known only where past days tell that part of the law."""
    known = 1 - Pooled.of(sales, sold_out).beyond
    days = f"{name}: {int(sold_out.sum())} of {len(sales)} rows sold out; the largest sale that was not cut off"
    if known >= level:
        return f"{days} covers {known:.0%} of the estimated demand, so an order for {level:.0%} can be learnt"
    return (
        f"{days} covers only {known:.0%} of the estimated demand, so an order for {level:.0%} cannot be learnt and "
        "will be too small: stock more on some days, then fit again"
    )
