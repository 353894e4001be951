"""Rows in a few sizes, so that few programs serve all."""

from __future__ import annotations

import numpy as np

LEAST_ROWS = 64


def bucket(n: int, least: int = LEAST_ROWS) -> int:
    """The next of 64, 96, 128, 192, 256, ...: at most half as many rows again, few different sizes."""
    size = least
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def padded(a: np.ndarray, rows: int, fill: float | None = None) -> np.ndarray:
    """``a`` with that many rows; padding repeats the last one."""
    extra = rows - len(a)
    tail = np.repeat(a[-1:], extra, axis=0) if fill is None else np.full((extra, *a.shape[1:]), fill, a.dtype)
    return np.concatenate([a, tail]) if extra else a
