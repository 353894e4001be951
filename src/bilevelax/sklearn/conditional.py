"""P(demand | context) from one demand per context: weights on the past days that resemble it.

Every way gives weights w_i(xi) on the training rows, which sum to one; demand given xi is row i's
with probability w_i(xi). A training row never votes for itself (`dirac` and `groups` excepted),
otherwise a policy would learn the noise of its own row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from bilevelax.applications.newsvendor.weights import Conditional, within_fences
from bilevelax.base.errors import require_choice
from bilevelax.sklearn.stored_forest import Trees

CONDITIONALS = ("forest", "knn", "kernel", "groups", "dirac", "neighbours")


class Forest(Conditional):
    """Leaves shared in a random forest (Meinshausen 2006; Bertsimas and Kallus 2020).

    A training row is looked up in the trees that did not see it.

    Args:
        trees, min_samples_leaf, max_features: of `sklearn.ensemble.RandomForestRegressor`.
    """

    def __init__(
        self, trees: int = 100, min_samples_leaf: int = 5, max_features: Any = 1 / 3, max_rows: int | None = None
    ) -> None:
        self.trees, self.min_samples_leaf, self.max_features = trees, min_samples_leaf, max_features
        self.max_rows = max_rows

    def _fit(self, rng: np.random.Generator) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self.forest_ = RandomForestRegressor(
            self.trees,
            min_samples_leaf=self.min_samples_leaf,
            max_features=self.max_features,
            random_state=int(rng.integers(2**31 - 1)),
        )
        target = within_fences(self.y_)  # else one typo decides where trees split
        target = target / np.where(target.std(axis=0) > 0, target.std(axis=0), 1.0)  # outputs count alike
        self.forest_.fit(self.X_, target[:, 0] if target.shape[1] == 1 else target)
        self.trees_ = Trees.of(self.forest_)
        self._gather(self._cells(self.X_))
        self.unseen_ = np.ones((self.n_rows_, self.trees), bool)
        for t, rows in enumerate(self.forest_.estimators_samples_):
            self.unseen_[rows, t] = False

    @classmethod
    def of_trees(cls, trees: Trees, X: np.ndarray, y: np.ndarray) -> Forest:
        """A forest that was fitted on these rows before, for contexts that are none of them."""
        made = cls(len(trees.roots))
        made.X_, made.y_, made.rows_, made.n_rows_, made.trees_ = X, y, np.arange(len(X)), len(X), trees
        made._gather(trees.apply(X))
        return made

    def _cells(self, X: np.ndarray) -> np.ndarray:
        """Numbers (rows, trees) of the leaves, over all trees."""
        return self.forest_.apply(X) + self.trees_.roots if hasattr(self, "forest_") else self.trees_.apply(X)

    def _gather(self, cells: np.ndarray) -> None:
        n, trees = cells.shape
        shape, places = (len(self.trees_.left), n), (cells.ravel(), np.repeat(np.arange(n), trees))
        members = sparse.csr_matrix((np.ones(n * trees), places), shape=shape)
        counts = np.asarray(members.sum(axis=1)).ravel()
        self.members_ = sparse.diags(1 / np.maximum(counts, 1)) @ members  # (cells, rows): uniform in each leaf

    def _weights(self, X: np.ndarray, own: np.ndarray | None) -> sparse.csr_matrix:
        cells = self._cells(X)
        n, trees = cells.shape
        use = np.ones((n, trees))
        if own is not None:
            unseen = np.where((own >= 0)[:, None], self.unseen_[np.maximum(own, 0)], True)
            use = np.where(unseen.any(axis=1, keepdims=True), unseen, True).astype(float)
        places = (np.repeat(np.arange(n), trees), cells.ravel())
        lookup = sparse.csr_matrix((use.ravel(), places), shape=(n, self.members_.shape[0]))
        W = lookup @ self.members_
        W.sort_indices()
        return W


class _Standardised(Conditional):
    """Distances between columns of unit deviation."""

    def _fit(self, rng: np.random.Generator) -> None:
        self.centre_ = self.X_.mean(axis=0)
        self.scale_ = np.where(self.X_.std(axis=0) > 0, self.X_.std(axis=0), 1.0)
        self.Z_ = (self.X_ - self.centre_) / self.scale_
        self._fit_distances()

    def _fit_distances(self) -> None: ...

    def _distances(self, X: np.ndarray) -> np.ndarray:
        from sklearn.metrics import pairwise_distances

        return pairwise_distances((X - self.centre_) / self.scale_, self.Z_)


class Neighbours(_Standardised):
    """Equal weights on the k nearest rows; by default the square root of their number.

    Euclidean distance over many one-hot columns is a poor guide: prefer `Forest` there.
    """

    def __init__(self, k: int | None = None, max_rows: int | None = None) -> None:
        self.k, self.max_rows = k, max_rows

    def _weights(self, X: np.ndarray, own: np.ndarray | None) -> sparse.csr_matrix:
        k = min(self.n_rows_, (self.k or max(5, round(self.n_rows_**0.5))) + (own is not None))
        distances = self._distances(X)
        nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]
        lines = np.repeat(np.arange(len(X)), k)
        return sparse.csr_matrix((np.ones(len(X) * k), (lines, nearest.ravel())), shape=distances.shape)


class Kernel(_Standardised):
    """Nadaraya-Watson weights ``exp(-|xi - xi_i|^2 / (2 h^2))``.

    By default h is such that a typical context rests on about sqrt(n) demands.
    """

    def __init__(self, bandwidth: float | None = None, max_rows: int | None = 5_000) -> None:
        self.bandwidth, self.max_rows = bandwidth, max_rows

    def _fit_distances(self) -> None:
        self.bandwidth_ = self.bandwidth or self._typical()

    def _typical(self) -> float:
        squares = self._distances(self.X_[:: max(1, self.n_rows_ // 200)]) ** 2
        wanted = max(5.0, self.n_rows_**0.5)
        low, high = 1e-3, 1e3
        for _ in range(50):
            h = (low * high) ** 0.5
            w = self._of_squares(squares, h)
            size = np.median(w.sum(axis=1) ** 2 / (w**2).sum(axis=1))
            low, high = (h, high) if size < wanted else (low, h)
        return float((low * high) ** 0.5)

    def _of_squares(self, squares: np.ndarray, h: float) -> np.ndarray:
        return np.exp(-(squares - squares.min(axis=1, keepdims=True)) / (2 * h**2))

    def _weights(self, X: np.ndarray, own: np.ndarray | None) -> np.ndarray:
        squares = self._distances(X) ** 2
        if own is not None:  # the nearest other row sets the scale, not the row itself
            there = own >= 0
            squares[np.flatnonzero(there), own[there]] = np.inf
        return self._of_squares(squares, self.bandwidth_)


class Groups(Conditional):
    """Demands of exactly equal contexts, equally likely; a new context takes its nearest group.

    Args:
        columns: numbers of those that count, by default all.
    """

    votes_for_itself = True

    def __init__(self, columns: list[int] | None = None, max_rows: int | None = 10**9) -> None:
        self.columns, self.max_rows = columns, max_rows

    def _own(self, X: np.ndarray) -> np.ndarray:
        return X if self.columns is None else X[:, self.columns]

    def _fit(self, rng: np.random.Generator) -> None:
        from sklearn.neighbors import NearestNeighbors

        self.contexts_, self.group_ = np.unique(self._own(self.X_), axis=0, return_inverse=True)
        self.group_ = self.group_.ravel()
        self.nearest_ = NearestNeighbors(n_neighbors=1).fit(self.contexts_)
        ones = np.ones(self.n_rows_)
        self.members_ = sparse.csr_matrix((ones, (self.group_, np.arange(self.n_rows_))))

    def _weights(self, X: np.ndarray, own: np.ndarray | None) -> sparse.csr_matrix:
        if own is not None:
            return self.members_[self.group_[own]]
        return self.members_[self.nearest_.kneighbors(self._own(X), return_distance=False)[:, 0]]


class Dirac(Conditional):
    """The demand that was seen, for certain; a new context takes that of its nearest row. Overfits small data."""

    votes_for_itself = True
    is_as_seen = True
    max_rows = 10**9

    def _fit(self, rng: np.random.Generator) -> None:
        from sklearn.neighbors import NearestNeighbors

        self.nearest_ = NearestNeighbors(n_neighbors=1).fit(self.X_)

    def _weights(self, X: np.ndarray, own: np.ndarray | None) -> sparse.csr_matrix:
        at = self.nearest_.kneighbors(X, return_distance=False)[:, 0] if own is None else own
        return sparse.csr_matrix((np.ones(len(X)), (np.arange(len(X)), at)), shape=(len(X), self.n_rows_))


def make_conditional(choice: Any, owner: str) -> Any:
    """The named way, or a copy-safe object of the user's with ``fit(X, y, random_state)`` and ``sample(X, n, ...)``."""
    if isinstance(choice, str):
        require_choice("conditional", owner, choice, CONDITIONALS)
        kinds = {"forest": Forest, "knn": Neighbours, "kernel": Kernel, "groups": Groups, "dirac": Dirac}
        kinds["neighbours"] = Neighbours
        return kinds[choice]()
    if not all(callable(getattr(choice, name, None)) for name in ("fit", "sample")):
        raise ValueError(
            f"`conditional` of {owner} must be one of {', '.join(map(repr, CONDITIONALS))} or an object with fit(X, y, "
            f"random_state) and sample(X, n, random_state). Got {choice!r}."
        )
    import copy

    return copy.deepcopy(choice)


def is_as_seen(choice: Any) -> bool:
    """Whether under this conditional, named or made, a row's own demand is all that is known of it."""
    return choice == "dirac" if isinstance(choice, str) else bool(getattr(choice, "is_as_seen", False))
