"""Which settings of RobustNewsvendor are best on YAZ, judged inside the first 75 % of the days only.

Three origins: train on the first 285, 380 and 475 days, pay on the 95 days after each. The 190 days on which
`newsvendor.py` tests are never read. Cost divided by mean demand, mean over dishes and origins, one seed.

``python benchmarks/newsvendor_choices.py [NAME ...]``; all of them take about ten minutes.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

import numpy as np
from common import publish
from scipy import sparse

from bilevelax.applications.newsvendor.loss import newsvendor_cost
from bilevelax.applications.newsvendor.policies import mlp
from bilevelax.applications.newsvendor.weights import Conditional
from bilevelax.datasets import load_yaz
from bilevelax.sklearn import RobustNewsvendor, baselines
from bilevelax.sklearn.conditional import Forest, Neighbours

ORIGINS = ((285, 380), (380, 475), (475, 570))


class EachOutput(Conditional):
    """A forest of its own for each output."""

    def __init__(self, **kw: Any) -> None:
        self.kw = kw

    def fit(self, X: np.ndarray, y: np.ndarray, random_state: Any = None) -> EachOutput:
        self.forests_ = [Forest(**self.kw).fit(X, y[:, [j]], random_state) for j in range(y.shape[1])]
        return self

    def atoms(self, X: np.ndarray, k: int, own: np.ndarray | None = None) -> np.ndarray:
        return np.concatenate([forest.atoms(X, k, own) for forest in self.forests_], axis=2)

    def effective_sample_size(self, X: np.ndarray) -> np.ndarray:
        return self.forests_[0].effective_sample_size(X)


class Recent(Forest):
    """Leaf weights times 2^(-age / half)."""

    def __init__(self, half: float) -> None:
        super().__init__()
        self.half = half

    def _weights(self, X: np.ndarray, own: np.ndarray | None) -> sparse.csr_matrix:
        age = np.arange(self.n_rows_)[::-1]
        return super()._weights(X, own) @ sparse.diags(2.0 ** (-age / self.half))


class AllTrees(Forest):
    """A row is looked up in every tree, its own demand left out, instead of the trees that did not see it."""

    def _fit(self, rng: np.random.Generator) -> None:
        super()._fit(rng)
        self.unseen_[:] = True


class Regressed(Conditional):
    """Boosted means, cross-fitted, plus residuals weighted by a forest."""

    def fit(self, X: np.ndarray, y: np.ndarray, random_state: Any = None) -> Regressed:
        from sklearn.ensemble import GradientBoostingRegressor
        from sklearn.model_selection import KFold, cross_val_predict

        make = partial(GradientBoostingRegressor, learning_rate=0.05, subsample=0.7, random_state=0)
        columns = range(y.shape[1])
        self.known_ = np.column_stack([cross_val_predict(make(), X, y[:, j], cv=KFold(5)) for j in columns])
        self.means_ = [make().fit(X, y[:, j]) for j in columns]
        self.rest_ = Forest(min_samples_leaf=20).fit(X, y - self.known_, random_state)
        return self

    def atoms(self, X: np.ndarray, k: int, own: np.ndarray | None = None) -> np.ndarray:
        mean = np.column_stack([m.predict(X) for m in self.means_]) if own is None else self.known_[own]
        return mean[:, None] + self.rest_.atoms(X, k, own)

    def effective_sample_size(self, X: np.ndarray) -> np.ndarray:
        return self.rest_.effective_sample_size(X)


class Mixed(Conditional):
    """Quantiles are means of the parts' quantiles."""

    def __init__(self, *parts: Conditional) -> None:
        self.parts = parts

    def fit(self, X: np.ndarray, y: np.ndarray, random_state: Any = None) -> Mixed:
        for part in self.parts:
            part.fit(X, y, random_state)
        return self

    def atoms(self, X: np.ndarray, k: int, own: np.ndarray | None = None) -> np.ndarray:
        return np.mean([part.atoms(X, k, own) for part in self.parts], axis=0)

    def effective_sample_size(self, X: np.ndarray) -> np.ndarray:
        return self.parts[0].effective_sample_size(X)


BEFORE: dict[str, Any] = dict(  # nothing is chosen
    policy="mlp", conditional="forest", learning_rate=3e-3, weight_decay=0.1, max_iter=800
)
EARLY = {"early_stopping": True, "max_iter": 400}
TRIED: dict[str, dict[str, Any]] = {
    "chosen (the default)": {"policy": "auto", "conditional": "auto", "penalty": "auto", "weight_decay": 1.0},
    "default before": {},
    "second seed": {**EARLY, "random_state": 1},
    "leaves of 3": {**EARLY, "conditional": Forest(min_samples_leaf=3)},
    "leaves of 10": {**EARLY, "conditional": Forest(min_samples_leaf=10)},
    "500 trees": {"conditional": Forest(trees=500)},
    "all trees": {"conditional": AllTrees()},
    "a forest for each dish": {**EARLY, "conditional": EachOutput()},
    "recent days first, half-life a year": {**EARLY, "conditional": Recent(365)},
    "boosted means and residuals": {**EARLY, "conditional": Regressed()},
    "forest and neighbours": {**EARLY, "conditional": Mixed(Forest(), Neighbours())},
    "16 members": {**EARLY, "members": 16},
    "16 units": {**EARLY, "policy": partial(mlp, width=16)},
    "64 units": {**EARLY, "policy": partial(mlp, width=64)},
    "linear rule": {**EARLY, "policy": "linear"},
    "weight decay 1": {**EARLY, "weight_decay": 1.0},
    "learning rate 0.001": {**EARLY, "learning_rate": 1e-3},
    "early stopping, at most 400 steps": EARLY,
    "100 steps": {"max_iter": 100},
    "200 steps": {"max_iter": 200},
    "400 steps": {"max_iter": 400},
    "1600 steps": {"max_iter": 1600},
    "penalty cv, last fifth": {"penalty": "cv"},
    "penalty cv, 3 folds": {"penalty": "cv", "cv": 3},
}


def costs(name: str, b: float) -> list[float]:
    """Mean relative cost at each origin."""
    data = load_yaz()
    last = ORIGINS[-1][1]
    X, y = data.X[:last], data.y[:last]
    found = []
    for start, end in ORIGINS:
        settings = {"penalty": 0.3, "random_state": 0, **BEFORE, **TRIED.get(name, {})}
        model = RobustNewsvendor(1, b, **settings) if name in TRIED else baselines(1, b, random_state=0)[name]
        orders = model.fit(X[:start], y[:start]).predict(X[start:end])
        found.append(float((newsvendor_cost(orders, y[start:end].to_numpy(), 1.0, b) / y.mean().to_numpy()).mean()))
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rows = []
    for name in sys.argv[1:] or [*TRIED, *baselines()]:
        row: dict[str, Any] = {"setting": name}
        for b in (3.0, 9.0):
            each = costs(name, b)
            row |= {f"backlog {b:g}": float(np.mean(each)), f"origins {b:g}": " ".join(f"{c:.3f}" for c in each)}
        rows.append(row)
    publish("newsvendor_choices", "YAZ, three origins inside the training days: relative cost", rows)
