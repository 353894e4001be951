"""`RobustClassifier` and `RobustRegressor`: linear rules for rows whose law may differ from that of training."""

from __future__ import annotations

import numbers
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import check_cv
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevelax.applications._robust_linear import rule
from bilevelax.applications.sinkhorn_dro import linear_problem_of
from bilevelax.base.declared import integer, map_of, number, one_of
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core.problem import Problem
from bilevelax.sklearn._robust_choice import FINE, SIZES, Choice, Fitted, Task, candidates, chosen, fitted, nothing
from bilevelax.sklearn.model_folder import require
from bilevelax.sklearn.persist_meta import LABELS, plain_labels, read_labels
from bilevelax.sklearn.persist_rules import KeptInFolder, require_above_zero

AMBIGUITIES = ("sinkhorn", "wasserstein", None)
NODES = 20  # of `problem_`
SIZE = number(1e-300)
DECLARED = {"sizes": map_of(one_of("lam", "eps", "radius", "alpha"), SIZE), "n_iter": integer(0, 2**31)}


class RobustLinear(KeptInFolder, BaseEstimator):
    """What both estimators share: settings, standardised rows, the choice of the set's size, the fit."""

    _loss: str

    def __init__(
        self,
        ambiguity: str | None = "sinkhorn",
        *,
        lam: Any = "cv",
        eps: Any = "cv",
        radius: Any = "cv",
        alpha: Any = "cv",
        choice: str = "robust",
        cv: Any = 5,
        max_iter: int = 1000,
    ) -> None:
        self.ambiguity = ambiguity
        self.lam = lam
        self.eps = eps
        self.radius = radius
        self.alpha = alpha
        self.choice = choice
        self.cv = cv
        self.max_iter = max_iter

    def _require_settings(self) -> None:
        owner = type(self).__name__
        require_choice("ambiguity", owner, self.ambiguity, AMBIGUITIES)
        require_choice("choice", owner, self.choice, ("best", "robust"))
        require_integer("max_iter", owner, self.max_iter, 1)
        for name in ("lam", "eps", "radius", "alpha"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value == "cv"):
                require_positive(name, owner, value)

    def _fit(self, X: np.ndarray, targets: np.ndarray, y: np.ndarray) -> Any:
        """Rules for targets (outputs, n), which tell the labels y."""
        self._centre, scale = X.mean(axis=0), X.std(axis=0)
        self._scale = np.where(scale > 1e-12 * (1 + np.abs(self._centre)), scale, 1.0)
        task = Task((X - self._centre) / self._scale, targets, self._loss, self.ambiguity)
        tried = candidates(self.get_params(deep=False), self.ambiguity)
        folds = self._folds(X, y) if len(tried) > 1 else []
        self.choice_: Choice | None = None
        sizes = tried[len(tried) // 2]  # too few rows to choose
        if len(tried) == 1:
            sizes = tried[0]
        elif folds:
            losses = lambda scores, test: self._losses(scores, targets[:, test])
            self.choice_ = chosen(task, tried, folds, losses, self.choice == "robust", self.max_iter)
            sizes = tried[self.choice_.best]
        for name, size in zip(SIZES[self.ambiguity], sizes, strict=True):
            setattr(self, f"{name}_", size)
        self._task, self._rules = task, fitted(task, np.ones(len(X)), sizes, nothing(task), FINE, self.max_iter)
        self.n_iter_ = self._rules.n_iter
        return self._rules

    def _folds(self, X: np.ndarray, y: np.ndarray) -> list[Any]:
        """Of scikit-learn, fewer where rows or labels are few; none where two are not possible."""
        cv = self.cv
        if isinstance(cv, numbers.Integral):
            require_integer("cv", type(self).__name__, cv, 2)
            few = len(X) if self._loss == "squared" else int(np.unique(y, return_counts=True)[1].min())
            if min(int(cv), few) < 2:
                return []
            cv = min(int(cv), few)
        return list(check_cv(cv, y, classifier=self._loss == "logistic").split(X, y))

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    @property
    def problem_(self) -> Problem:
        """The Sinkhorn problem of the first rule on standardised rows, for `solve`, `minimize` and `check`."""
        check_is_fitted(self, "coef_")
        if self.ambiguity != "sinkhorn":
            raise ValueError(f"`problem_` is of ambiguity='sinkhorn'. Got {self.ambiguity!r}.")
        if not hasattr(self, "_task"):
            raise ValueError(f"This {type(self).__name__} was loaded without its rows, so `problem_` needs a new fit.")
        task = self._task
        return linear_problem_of(self._loss, task.a, task.targets[0], self.lam_, self.eps_, NODES)

    @property
    def x1_(self) -> Any:
        """Where `solve` may start on ``problem_``."""
        check_is_fitted(self, "coef_")
        return rule(self.n_features_in_)

    def _kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        sizes = {name: float(getattr(self, f"{name}_")) for name in SIZES[self.ambiguity]}
        rules = self._rules
        arrays = {"centre": self._centre, "scale": self._scale, "w": rules.w, "b": rules.b}
        return {"sizes": sizes, "n_iter": int(rules.n_iter)}, arrays

    def _shapes(self, fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        d, rules = self.n_features_in_, self._many(fitted)
        return {"centre": (d,), "scale": (d,), "w": (rules, d), "b": (rules,)}

    def _many(self, fitted: dict[str, Any]) -> int:
        """Rules: one, or one a class."""
        return 1

    def _restore(self, fitted: dict[str, Any], arrays: dict[str, np.ndarray], path: Path) -> None:
        asked = SIZES[self.ambiguity]
        require(set(fitted["sizes"]) == set(asked), path, "fitted.sizes", " and ".join(asked), fitted["sizes"])
        require_above_zero(path, "scale", arrays["scale"])
        self._centre, self._scale = arrays["centre"], arrays["scale"]
        self._rules = Fitted(arrays["w"], arrays["b"], fitted["n_iter"])
        self.n_iter_, self.choice_ = fitted["n_iter"], None
        for name, size in fitted["sizes"].items():
            setattr(self, f"{name}_", size)
        self._tell()

    def _tell(self) -> None:
        raise NotImplementedError

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return ((X - self._centre) / self._scale) @ self._rules.w.T + self._rules.b


class RobustClassifier(ClassifierMixin, RobustLinear):
    r"""Logistic regression that stays good when rows are blurred, shifted or tampered with.

    .. math::
        \min_{w, b} \lambda\epsilon \, E_\xi \log E_{\eta|\xi} \exp\frac{\log(1 + e^{-s(\eta)})}{\lambda\epsilon}, \quad
        \eta \sim N(\xi, \epsilon I), \quad s(\eta) = \pm (w \eta + b)

    Scores are linear, so the inner mean is an integral over one normal variable and costs are exact: nothing is
    sampled, and the answer does not depend on a seed. Many classes are fitted each against the others. Columns are
    standardised: a move of 1 is one standard deviation of a column in the training rows.

    Args:
        ambiguity: ``"sinkhorn"``: entropic transport with price ``lam`` and entropy ``eps`` (Wang, Gao and Xie 2021);
            ``"wasserstein"``: E loss + ``radius |w|``, the exact worst case over laws within that W_1 distance of the
            features (Shafieezadeh-Abadeh, Kuhn and Mohajerin Esfahani 2019); None: E loss + ``alpha |w|^2 / 2``.
        lam: price of moving a row by ``|move|^2 / 2``. Small is cautious.
        eps: variance by which rows are blurred.
        radius: of the Wasserstein ball.
        alpha: ridge penalty without ambiguity.
            Each is a positive number, or ``"cv"``: chosen by the held-out log loss.
        choice: of what ``"cv"`` tries, ``"best"`` takes the least held-out loss; ``"robust"`` the shortest w among all
            that one standard error of the differences to it does not tell apart.
        cv: number of folds, a splitter of scikit-learn, or a list of (train, test) row numbers.
        max_iter: steps of L-BFGS at most.

    Attributes:
        coef_, intercept_: (1, d) and (1,) for two classes, else one row a class, in the units of X.
        lam_, eps_, radius_, alpha_: what was used of these.
        choice_: what was tried, with held-out losses; None where nothing was to choose.
        problem_, x1_: the first rule's problem and start: ``bilevelax.solve(problem_, x1_, key=...)`` finds it too.
    """

    _loss = "logistic"
    _declared = DECLARED | {"classes": LABELS}

    def fit(self, X: Any, y: Any) -> RobustClassifier:
        """Learn the rules from rows X (n, d) with labels y."""
        self._require_settings()
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, number = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y of {type(self).__name__} must hold at least two classes. Got 1 class, {self.classes_[0]!r}."
            )
        positive = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        self._fit(X, np.stack([np.where(number == k, 1.0, -1.0) for k in positive]), number)
        self._tell()
        return self

    def _tell(self) -> None:
        self.coef_ = self._rules.w / self._scale
        self.intercept_ = self._rules.b - self.coef_ @ self._centre

    def _kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        fitted, arrays = super()._kept()
        return fitted | {"classes": plain_labels(self.classes_, "labels")}, arrays

    def _many(self, fitted: dict[str, Any]) -> int:
        many = len(fitted["classes"]["values"])
        return 1 if many == 2 else many

    def _restore(self, fitted: dict[str, Any], arrays: dict[str, np.ndarray], path: Path) -> None:
        self.classes_ = read_labels(path, "fitted.classes", fitted["classes"])
        require(len(self.classes_) > 1, path, "fitted.classes", "two labels or more", self.classes_.tolist())
        super()._restore(fitted, arrays, path)

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        if len(targets) == 1:
            return np.logaddexp(0, -targets[0] * scores[:, 0])
        return -np.log(shares(scores)[targets.T > 0])

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores (n,) for two classes, else (n, classes)."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest label of each row."""
        scores = self._scores(X)
        return self.classes_[(scores[:, 0] > 0).astype(int) if len(self.classes_) == 2 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes)."""
        scores = self._scores(X)
        return shares(np.hstack([-scores, scores])) if len(self.classes_) == 2 else shares(scores)


def shares(scores: np.ndarray) -> np.ndarray:
    """sigmoid(score) of each class, made to add up to one; in logarithms, so that far scores keep their order."""
    return softmax(-np.logaddexp(0, -scores), axis=1)


class RobustRegressor(RegressorMixin, RobustLinear):
    r"""Linear regression that stays good when rows are blurred, shifted or tampered with.

    .. math::
        \min_{w, b} \lambda\epsilon \, E_\xi \log E_{\eta|\xi} \exp\frac{(y - w\eta - b)^2}{2\lambda\epsilon}
        = \min_{w, b} \frac{E (y - w\xi - b)^2}{2 (1 - |w|^2/\lambda)}
        - \frac{\lambda\epsilon}{2} \log(1 - |w|^2/\lambda)

    As `RobustClassifier`, with rows and targets standardised. ``"wasserstein"`` is
    ``(sqrt(E r^2) + radius |w|)^2 / 2``, the exact worst case over laws within that W_2 distance of
    the features (Blanchet, Kang and Murthy 2019).

    Args:
        ambiguity, lam, eps, radius, alpha, choice, cv, max_iter: as of `RobustClassifier`; held-out losses are
            squared errors.

    Attributes:
        coef_, intercept_: (d,) and a number, in the units of X and y.
    """

    _loss = "squared"
    _declared = DECLARED | {"level": number(), "unit": number(1e-300)}

    def fit(self, X: Any, y: Any) -> RobustRegressor:
        """Learn the rule from rows X (n, d) with targets y."""
        self._require_settings()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = np.asarray(y, np.float64)
        self._level, spread = y.mean(), y.std()
        self._unit = spread if spread > 1e-12 * (1 + abs(self._level)) else 1.0
        self._fit(X, ((y - self._level) / self._unit)[None], y)
        self._tell()
        return self

    def _tell(self) -> None:
        self.coef_ = self._unit * self._rules.w[0] / self._scale
        self.intercept_ = float(self._level + self._unit * self._rules.b[0] - self.coef_ @ self._centre)

    def _kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        fitted, arrays = super()._kept()
        return fitted | {"level": float(self._level), "unit": float(self._unit)}, arrays

    def _restore(self, fitted: dict[str, Any], arrays: dict[str, np.ndarray], path: Path) -> None:
        self._level, self._unit = fitted["level"], fitted["unit"]
        super()._restore(fitted, arrays, path)

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (scores[:, 0] - targets[0]) ** 2

    def predict(self, X: Any) -> np.ndarray:
        """Targets (n,)."""
        scores = self._scores(X)[:, 0]
        return self._level + self._unit * scores
