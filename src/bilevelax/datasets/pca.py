"""Principal components, fitted in one pass over blocks of rows that need not fit in memory together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh


class PCA(NamedTuple):
    """x -> (x - mean) @ components; ``explained`` is the share of the variance kept."""

    mean: np.ndarray  # (d,) float64
    components: np.ndarray  # (d, k) float64, orthonormal columns, most variance first
    explained: float

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Coordinates (n, k) of rows (n, d), float32."""
        return ((rows - self.mean) @ self.components).astype(np.float32)


def fit_pca(blocks: Iterable[np.ndarray], k: int) -> PCA:
    """The min(k, rank bound) first components of the rows of all blocks.

    n centred rows span at most n - 1 dimensions, so at most max(1, n - 1) components are returned. Each component's
    entry of largest absolute value is positive, which fixes its sign.
    """
    n, total, squares = 0, np.zeros(()), np.zeros(())
    shift: np.ndarray | None = None
    for block in blocks:
        rows = block.astype(np.float64)
        shift = rows.mean(0) if shift is None else shift  # near the mean: no cancellation below
        rows = rows - shift
        n, total, squares = n + len(rows), total + rows.sum(0), squares + rows.T @ rows
    if shift is None:
        raise ValueError("`blocks` of fit_pca must hold at least one row. Got none.")
    offset = total / n
    covariance = squares / n - np.outer(offset, offset)
    d = len(covariance)
    k = min(k, max(1, n - 1), d)
    values, vectors = eigh(covariance, subset_by_index=[d - k, d - 1])
    values, components = np.maximum(values[::-1], 0), vectors[:, ::-1]
    largest = np.abs(components).argmax(0)
    components = components * np.where(components[largest, np.arange(k)] < 0, -1, 1)
    variance = float(np.trace(covariance))
    return PCA(shift + offset, components, float(values.sum()) / variance if variance > 0 else 1.0)
