"""Weights on past rows: what every estimate of P(demand | context) shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

WEIGHED_AT_ONCE = 1024  # contexts whose weights are in memory at once
FENCE = 5.0  # distances between quartiles; of a normal column no value in 10^12 lies beyond
FOREST_ROWS = 20_000  # beyond this the forest sees a subsample; kernel and neighbours likewise


def within_fences(a: np.ndarray) -> np.ndarray:
    """Columns cut at five times the distance between their quartiles beyond them; ordinary ones stay as they are."""
    low, high = np.quantile(a, (0.25, 0.75), axis=0)
    far = np.where(high > low, FENCE * (high - low), np.inf)
    return np.clip(a, low - far, high + far)


class Conditional:
    """Weighted past demands. Subclasses give ``_fit(X, rng)`` and ``_weights(X, own)``.

    Args:
        max_rows: largest number of rows that weights are put on, by default 20,000; of more, a random
            subsample of this size is kept (``n_rows_`` says how many).
    """

    max_rows: int | None = None
    votes_for_itself = False
    is_as_seen = False  # a row's own demand is all that is known of it

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in vars(self).items() if not name.endswith("_"))
        return f"{type(self).__name__}({', '.join(given)})"

    def fit(self, X: np.ndarray, y: np.ndarray, random_state: Any = None) -> Conditional:
        """Remember (a subsample of) the rows: contexts X (n, d), demands y (n, outputs)."""
        rng = np.random.default_rng(random_state)
        n, most = len(X), self.max_rows or FOREST_ROWS
        self.rows_ = np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))
        self.X_, self.y_ = X[self.rows_], y[self.rows_]
        self.n_rows_ = len(self.rows_)
        self._fit(rng)
        return self

    def weights(self, X: np.ndarray, own: np.ndarray | None = None) -> sparse.csr_matrix:
        """Weights (contexts, rows) of the remembered rows, each line summing to one.

        Args:
            X: contexts.
            own: for contexts that are themselves training rows, their numbers in ``fit``; such a
                row gets no weight from itself.
        """
        place = None if own is None else np.searchsorted(self.rows_, own)
        if place is not None and own is not None:
            place = np.where(self.rows_[np.minimum(place, self.n_rows_ - 1)] == own, place, -1)
        W = sparse.csr_matrix(self._weights(X, place))
        if place is not None and not self.votes_for_itself and self.n_rows_ > 1:
            W = _without_self(W, place)
        total = np.asarray(W.sum(axis=1)).ravel()
        if (lost := np.flatnonzero(total <= 0)).size:  # nothing resembles it: all rows alike
            W = W.tolil()
            W[lost] = 1.0
            W, total = W.tocsr(), np.where(total > 0, total, self.n_rows_)
        return sparse.diags(1 / total) @ W

    def effective_sample_size(self, X: np.ndarray) -> np.ndarray:
        """1 / sum of w_i^2: how many demands a context's distribution really rests on."""
        sizes = [1 / np.asarray(W.multiply(W).sum(axis=1)).ravel() for W in self.in_chunks(X)]
        return np.concatenate(sizes)

    def sample(self, X: np.ndarray, n: int, random_state: Any = None) -> np.ndarray:
        """n demands (contexts, n, outputs) for each context, drawn by inverting the distribution function."""
        rng = np.random.default_rng(random_state)
        drawn = []
        for W in self.in_chunks(X):
            for i in range(W.shape[0]):
                line = slice(W.indptr[i], W.indptr[i + 1])
                cdf = np.cumsum(W.data[line])
                at = np.searchsorted(cdf, rng.uniform(0, cdf[-1], n), side="right")
                drawn.append(self.y_[W.indices[line][np.minimum(at, len(cdf) - 1)]])
        return np.stack(drawn)

    def quantiles(self, X: np.ndarray, levels: np.ndarray, own: np.ndarray | None = None) -> np.ndarray:
        """Quantiles (contexts, levels, outputs) of each output's distribution."""
        parts = [weighted_quantiles(W, self.y_, levels) for W in self.in_chunks(X, own)]
        return np.concatenate(parts)

    def quantiles_of_rows(self, X: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """The quantile (contexts, outputs) of each output at a level of its own for each context."""
        if (levels == levels[:1]).all():
            return np.diagonal(self.quantiles(X, levels[0]), axis1=1, axis2=2).copy()
        kinds, kind = np.unique(levels, axis=0, return_inverse=True)
        found = np.empty(levels.shape)
        for k, level in enumerate(kinds):
            rows = np.flatnonzero(kind.ravel() == k)
            found[rows] = np.diagonal(self.quantiles(X[rows], level), axis1=1, axis2=2)
        return found

    def atoms(self, X: np.ndarray, k: int, own: np.ndarray | None = None) -> np.ndarray:
        """k equally likely demands (contexts, k, outputs) that stand for each output's distribution.

        The quantiles at (j + 1/2) / k. The outputs share their order, which is no joint law; a
        cost that adds up over outputs does not see it.
        """
        return self.quantiles(X, (np.arange(k) + 0.5) / k, own)

    def in_chunks(self, X: np.ndarray, own: np.ndarray | None = None) -> Iterator[sparse.csr_matrix]:
        for start in range(0, len(X), WEIGHED_AT_ONCE):
            part = slice(start, start + WEIGHED_AT_ONCE)
            yield self.weights(X[part], None if own is None else own[part])

    def _fit(self, rng: np.random.Generator) -> None:
        raise NotImplementedError

    def _weights(self, X: np.ndarray, own: np.ndarray | None) -> Any:
        raise NotImplementedError


def _without_self(W: sparse.csr_matrix, place: np.ndarray) -> sparse.csr_matrix:
    """Zero where a row meets itself, unless it has nobody else."""
    there = np.flatnonzero(place >= 0)
    self_weight = sparse.csr_matrix((np.asarray(W[there, place[there]]).ravel(), (there, place[there])), shape=W.shape)
    left = W - self_weight
    left.data = np.maximum(left.data, 0.0)
    alone = np.asarray(left.sum(axis=1)).ravel() <= 1e-12
    return (left + sparse.diags(alone.astype(float)) @ self_weight).tocsr()


def weighted_quantiles(W: sparse.csr_matrix, y: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """For each line of W and each output: the smallest demand whose distribution function reaches the level."""
    lines = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    out = np.empty((W.shape[0], len(levels), y.shape[1]))
    for j in range(y.shape[1]):
        values = y[W.indices, j]
        order = np.lexsort((values, lines))
        cdf = np.cumsum(W.data[order])
        offset = np.concatenate([[0.0], cdf[W.indptr[1:] - 1]])  # what the lines before add up to
        wanted = offset[:-1, None] + levels[None, :] * np.diff(offset)[:, None] * (1 - 1e-9)
        at = np.searchsorted(cdf, wanted.ravel()).reshape(wanted.shape)
        at = np.clip(at, W.indptr[:-1, None], W.indptr[1:, None] - 1)
        out[:, :, j] = values[order][at]
    return out
