"""Fitted trees as plain arrays, which a model's folder keeps: nobody fits them again to order."""

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
        return cls.of_parts([tree.tree_ for tree in forest.estimators_])

    @classmethod
    def of_parts(cls, parts: list[Any]) -> Trees:
        """Of single trees of scikit-learn."""
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

    def stored(self, kind: str = "forest") -> dict[str, np.ndarray]:
        """As numbers of a model's folder."""
        return {f"{kind}_{name}": a.astype(float) for name, a in self._asdict().items()}

    @classmethod
    def read(cls, arrays: dict[str, np.ndarray], columns: int, kind: str = "forest") -> Trees:
        """From `stored`; what could not be a forest is refused."""
        found = [arrays[f"{kind}_{name}"] for name in cls._fields]
        threshold = found[1]
        feature, _, left, right, roots = (a.astype(np.int64) for a in found)
        nodes, number, leaf = len(left), np.arange(len(left)), left < 0
        good = (feature >= 0) & (feature < columns)
        good &= np.where(leaf, right < 0, (left > number) & (right > number) & (left < nodes) & (right < nodes))
        whole = all((a == b).all() for a, b in zip(found[2:], (left, right, roots), strict=True))
        if not (good.all() and whole and len(roots) and (roots >= 0).all() and (roots < nodes).all()):
            raise ValueError("its forest has nodes that no forest has")
        return cls(feature, threshold, left, right, roots)


class Boosts(NamedTuple):
    """Boosted trees of several answers, one after the other: an answer is its start and what its trees add."""

    trees: Trees
    values: np.ndarray  # what each node adds
    starts: np.ndarray  # of each answer; all have equally many trees

    @classmethod
    def of(cls, regressors: list[Any]) -> Boosts:
        """Of fitted `sklearn.ensemble.GradientBoostingRegressor`s whose answers start at a constant."""
        parts = [tree.tree_ for each in regressors for tree in each.estimators_[:, 0]]
        rates = [each.learning_rate for each in regressors for _ in each.estimators_]
        values = [rate * part.value[:, 0, 0] for rate, part in zip(rates, parts, strict=True)]
        starts = np.array([float(np.ravel(each.init_.constant_)[0]) for each in regressors])
        return cls(Trees.of_parts(parts), np.concatenate(values), starts)

    def answers(self, X: np.ndarray, number: int) -> np.ndarray:
        """Those of one of the regressors."""
        own = np.array_split(self.trees.roots, len(self.starts))[number]
        return self.starts[number] + self.values[self.trees._replace(roots=own).apply(X)].sum(axis=1)

    def stored(self) -> dict[str, np.ndarray]:
        """As numbers of a model's folder."""
        return {**self.trees.stored("boosts"), "boosts_values": self.values, "boosts_starts": self.starts}

    @classmethod
    def read(cls, arrays: dict[str, np.ndarray], columns: int) -> Boosts:
        """From `stored`; what could not be boosted trees is refused."""
        trees, starts = Trees.read(arrays, columns, "boosts"), arrays["boosts_starts"]
        if len(trees.roots) % len(starts):
            raise ValueError("its boosted quantiles have unequally many trees")
        return cls(trees, arrays["boosts_values"], starts)
