"""The trees of a fitted forest as plain arrays, which a model's folder keeps: nobody fits them again to order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

MOST_NODES = 250_000  # 10 MB in a model's folder; a larger forest is fitted again on the rows kept there


class Trees(NamedTuple):
    """Nodes of all trees, numbered one tree after the other; every child comes after its parent."""

    feature: np.ndarray  # column that a node asks for
    threshold: np.ndarray  # rows with at most this go left
    left: np.ndarray  # number of a child, -1 for a leaf
    right: np.ndarray
    roots: np.ndarray  # number of each tree's first node

    @classmethod
    def of(cls, forest: Any) -> Trees:
        """Of a fitted forest of scikit-learn."""
        parts = [tree.tree_ for tree in forest.estimators_]
        roots = np.concatenate([[0], np.cumsum([part.node_count for part in parts])[:-1]])
        joined = lambda name: np.concatenate([getattr(part, name) for part in parts])
        shift = np.repeat(roots, [part.node_count for part in parts])
        left, right = (np.where(a < 0, -1, a + shift) for a in map(joined, ("children_left", "children_right")))
        return cls(np.maximum(joined("feature"), 0), joined("threshold"), left, right, roots)

    def apply(self, X: np.ndarray) -> np.ndarray:
        """Numbers (rows, trees) of the leaves: scikit-learn's own, which compares rows in single precision."""
        X = X.astype(np.float32)
        rows, at = np.arange(len(X))[:, None], np.tile(self.roots, (len(X), 1))
        while (inside := self.left[at] >= 0).any():
            below = np.where(X[rows, self.feature[at]] <= self.threshold[at], self.left[at], self.right[at])
            at = np.where(inside, below, at)
        return at

    def stored(self) -> dict[str, np.ndarray]:
        """As numbers of a model's folder."""
        return {f"forest_{name}": a.astype(float) for name, a in self._asdict().items()}

    @classmethod
    def read(cls, arrays: dict[str, np.ndarray], columns: int) -> Trees:
        """From `stored`; what could not be a forest is refused."""
        found = [arrays[f"forest_{name}"] for name in cls._fields]
        threshold = found[1]
        feature, _, left, right, roots = (a.astype(np.int64) for a in found)
        nodes, number, leaf = len(left), np.arange(len(left)), left < 0
        good = (feature >= 0) & (feature < columns)
        good &= np.where(leaf, right < 0, (left > number) & (right > number) & (left < nodes) & (right < nodes))
        whole = all((a == b).all() for a, b in zip(found[2:], (left, right, roots), strict=True))
        if not (good.all() and whole and len(roots) and (roots >= 0).all() and (roots < nodes).all()):
            raise ValueError("its forest has nodes that no forest has")
        return cls(feature, threshold, left, right, roots)
