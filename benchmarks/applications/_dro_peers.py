"""Linear rules of two libraries of robust learning, where they are installed: their weights, tuned by scikit-learn.

dro: Sinkhorn sets by stochastic gradients. Its logistic loss (0.4.3) takes labels of 0 and 1 and then moves them as if
they were -1 and 1, so classification is by its hinge loss. Importing ``dro`` asks for torchvision, which its linear
rules do not use: they are imported alone.
skwdro: Wasserstein sets, by its dedicated solvers, which are several times faster than its smoothed ones; by these
where the others fail.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from common import installed
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV

SPLITS, FOLDS = 4, 3  # of the table's ten splits: fits take seconds
EPOCHS = 100  # of dro; 1,000 by default, 50 to 300 give the same accuracy within 0.004 in one trial


class Peer(BaseEstimator, ABC):
    """Scores ``X w + b``; labels -1 and 1, or a standardised target."""

    def __init__(self, kind: str = "class") -> None:
        self.kind = kind

    @abstractmethod
    def _weights(self, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
        """w and b."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        labels = self.kind == "class"
        self.middle, self.unit = (y.min(), np.ptp(y)) if labels else (y.mean(), y.std())
        targets = np.where(y == y.max(), 1.0, -1.0) if labels else (y - self.middle) / self.unit
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            w, b = self._weights(X, targets)
        self.w, self.b = np.ravel(w).astype(float), float(np.ravel(b)[0])
        return self

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        return X @ self.w + self.b

    def predict(self, X: np.ndarray) -> np.ndarray:
        scores = self.decision_function(X)
        return self.middle + self.unit * ((scores > 0) if self.kind == "class" else scores)

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        return float((accuracy_score if self.kind == "class" else r2_score)(y, self.predict(X)))


class Skwdro(Peer):
    def __init__(self, kind: str = "class", rho: float = 0.01) -> None:
        super().__init__(kind)
        self.rho = rho

    def _weights(self, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
        from skwdro.linear_models import LinearRegression, LogisticRegression

        rule = LogisticRegression if self.kind == "class" else LinearRegression
        try:
            model = rule(rho=self.rho, solver="dedicated").fit(X, y)
        except Exception:  # cvxpy's SolverError on some splits: the smoothed rule, its default
            model = rule(rho=self.rho).fit(X, y)
        return model.coef_, model.intercept_


class Dro(Peer):
    def __init__(self, kind: str = "class", lam: float = 10.0, eps: float = 0.03) -> None:
        super().__init__(kind)
        self.lam = lam
        self.eps = eps

    def _weights(self, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
        import torch

        alone("dro")
        from dro.linear_model.sinkhorn_dro import SinkhornDROError, SinkhornLinearDRO

        torch.manual_seed(0)
        loss = "svm" if self.kind == "class" else "ols"
        model = SinkhornLinearDRO(X.shape[1], loss, reg_param=self.eps, lambda_param=self.lam, max_iter=EPOCHS)
        try:
            found = model.fit(X, y)
        except SinkhornDROError:  # it diverges where lam * eps is small: the constant rule, which no one chooses
            return np.zeros(X.shape[1]), 0.0
        return found["theta"], found["bias"]


def alone(package: str) -> None:
    """Make the package's folder importable without running its ``__init__``."""
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)


def peers(kind: str, grid: dict[str, tuple[float, ...]]) -> dict[str, Callable[[], Any]]:
    """Those that are installed; dro on the grid of ours, skwdro on radii."""
    found: dict[str, Callable[[], Any]] = {}
    if installed("torch"):
        import torch

        torch.set_num_threads(1)
    if installed("skwdro", "torch"):
        found[f"skwdro {version('skwdro')}"] = lambda: GridSearchCV(Skwdro(kind), {"rho": [1e-3, 1e-2, 1e-1]}, cv=FOLDS)
    if installed("dro", "torch"):
        found[f"dro {version('dro')}"] = lambda: GridSearchCV(
            Dro(kind), {k: list(v) for k, v in grid.items()}, cv=FOLDS
        )
    return found
