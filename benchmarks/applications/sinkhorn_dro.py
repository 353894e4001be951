"""Robust linear rules on clean, shifted, blurred and attacked test rows, against plain and other robust ones."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from common import installed
from published import Row, compared
from scipy.stats import t as student
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler

from bilevelax.sklearn import RobustClassifier, RobustRegressor

SHIFT, BLUR, ATTACK = 0.5, 1.0, 0.5  # standard deviations of a column; the attack's is a length


def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    return load_breast_cancer(return_X_y=True)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """3 against 8."""
    X, y = load_digits(return_X_y=True)
    return X[(y == 3) | (y == 8)], y[(y == 3) | (y == 8)]


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    return load_diabetes(return_X_y=True)


def skwdro_rule(kind: str) -> Any:
    """Tuned by scikit-learn's search, as its documentation does."""
    from skwdro.linear_models import LinearRegression, LogisticRegression

    model = LogisticRegression() if kind == "class" else LinearRegression()
    return GridSearchCV(model, {"rho": [1e-3, 1e-2, 1e-1]}, cv=3)


def rules(kind: str) -> dict[str, Callable[[], Any]]:
    ours = RobustClassifier if kind == "class" else RobustRegressor
    plain = LogisticRegressionCV(max_iter=1000) if kind == "class" else RidgeCV(np.logspace(-3, 4, 20))
    found: dict[str, Callable[[], Any]] = {
        "plain, tuned ridge": lambda: plain,
        "sinkhorn": lambda: ours("sinkhorn"),
        "wasserstein": lambda: ours("wasserstein"),
    }
    if installed("skwdro"):
        found["skwdro"] = lambda: skwdro_rule(kind)
    return found


def changed(X: np.ndarray, y: np.ndarray, model: Any, kind: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Test rows in units of standard deviations, changed in four ways; the attack knows the rule, which is linear."""
    direction = rng.choice([-1.0, 1.0], X.shape[1])
    scores = lambda rows: np.asarray(model.decision_function(rows) if kind == "class" else model.predict(rows))
    w = np.array([scores(e[None] * 1.0)[0] - scores(np.zeros((1, X.shape[1])))[0] for e in np.eye(X.shape[1])])
    away = -np.where(y == y.max(), 1.0, -1.0) if kind == "class" else np.sign(scores(X) - y)
    return {
        "clean": X,
        "shifted": X + SHIFT * direction,
        "blurred": X + BLUR * rng.normal(size=X.shape),
        "attacked": X + ATTACK * away[:, None] * w / max(np.linalg.norm(w), 1e-12),
    }


def measured(data: Callable[[], Any], kind: str, seed: int) -> dict[str, dict[str, float]]:
    """Accuracy or R^2 of each rule on each kind of test rows."""
    X, y = data()
    train, test, a, b = train_test_split(
        X, y, test_size=0.5, random_state=seed, stratify=y if kind == "class" else None
    )
    scaler = StandardScaler().fit(train)
    Z, T = scaler.transform(train), scaler.transform(test)
    found = {}
    for name, make in rules(kind).items():
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            model = make().fit(Z, a)
        rng = np.random.default_rng(seed)  # the same changes for every rule
        found[name] = {how: float(model.score(rows, b)) for how, rows in changed(T, b, model, kind, rng).items()}
    return found


def shown(values: list[float]) -> str:
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def run(quick: bool = False) -> None:
    begin, rows, notes = time.process_time(), [], []
    seeds = range(2 if quick else 10)
    for data, kind in ((breast_cancer, "class"), (digits, "class"), (diabetes, "regression")):
        seen = [measured(data, kind, seed) for seed in seeds]
        for how in ("clean", "shifted", "blurred", "attacked"):
            cells = {name: [each[name][how] for each in seen] for name in seen[0]}
            rivals = {name: values for name, values in cells.items() if name not in ("sinkhorn", "wasserstein")}
            best = max(rivals, key=lambda name: np.mean(rivals[name]))
            measure = "accuracy" if kind == "class" else "R²"
            task = f"{data.__name__}, {how} test rows: {measure}, larger is better"
            seconds = time.process_time() - begin
            rows.append(Row(task, "none found", shown(cells["sinkhorn"]), f"{best} {shown(rivals[best])}", seconds))
            notes.append(f"{task}: " + "; ".join(f"{name} {shown(values)}" for name, values in cells.items()) + ".")
    notes.append(
        f"{len(seeds)} random halves to learn from, the others to test; 95 % intervals over them. Sizes of sets and "
        f"penalties by cross-validation on clean rows. Shift {SHIFT}, blur {BLUR}, attack of length {ATTACK}, in "
        "standard deviations of columns; an attack is the worst move for the rule that it meets. Digits: 3 against 8."
    )
    compared("sinkhorn_dro", "Sinkhorn DRO", rows, notes, quick=quick)
