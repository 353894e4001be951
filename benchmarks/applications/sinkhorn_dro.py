"""Robust linear rules on clean, shifted, blurred and attacked test rows, against plain and other robust ones."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from _dro_peers import FOLDS, SPLITS, peers
from published import Row, compared
from scipy.stats import t as student
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from bilevelax.sklearn import RobustClassifier, RobustRegressor
from bilevelax.sklearn._robust_choice import GRIDS

PLAIN = "plain, tuned ridge"
SAME = {name: GRIDS[name] for name in ("lam", "eps")}  # for dro
SHIFT, BLUR, ATTACK = 0.5, 1.0, 0.5  # standard deviations of a column; the attack's is a length


def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    return load_breast_cancer(return_X_y=True)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """3 against 8."""
    X, y = load_digits(return_X_y=True)
    return X[(y == 3) | (y == 8)], y[(y == 3) | (y == 8)]


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    return load_diabetes(return_X_y=True)


def rules(kind: str) -> dict[str, Callable[[], Any]]:
    ours = RobustClassifier if kind == "class" else RobustRegressor
    plain = LogisticRegressionCV(max_iter=1000) if kind == "class" else RidgeCV(np.logspace(-3, 4, 20))
    return {
        PLAIN: lambda: plain,
        "sinkhorn": lambda: ours("sinkhorn"),
        "wasserstein": lambda: ours("wasserstein"),
    }


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
    """Accuracy or R^2 of each rule on each kind of test rows; peers, which are slow, on the first splits."""
    X, y = data()
    train, test, a, b = train_test_split(
        X, y, test_size=0.5, random_state=seed, stratify=y if kind == "class" else None
    )
    scaler = StandardScaler().fit(train)
    Z, T = scaler.transform(train), scaler.transform(test)
    found = {}
    for name, make in (rules(kind) | (peers(kind, SAME) if seed < SPLITS else {})).items():
        begin = time.process_time()
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            model = make().fit(Z, a)
        rng = np.random.default_rng(seed)  # the same changes for every rule
        found[name] = {how: float(model.score(rows, b)) for how, rows in changed(T, b, model, kind, rng).items()}
        found[name]["seconds"] = time.process_time() - begin
    print(data.__name__, seed, {name: round(each["seconds"], 1) for name, each in found.items()}, flush=True)
    return found


def shown(values: list[float]) -> str:
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def beside(cells: dict[str, list[float]]) -> str:
    """The libraries on their splits, and ours there."""
    others = [name for name in cells if name not in rules("class")]
    few = len(cells[others[0]]) if others else 0
    told = [f"{name} {shown(cells[name])}" for name in others]
    return f"; on {few} of the splits {', '.join(told)}, ours {shown(cells['sinkhorn'][:few])}" if few > 1 else ""


def run(quick: bool = False) -> None:
    rows, notes = [], []
    seeds = range(2 if quick else 10)
    for data, kind in ((breast_cancer, "class"), (digits, "class"), (diabetes, "regression")):
        seen = [measured(data, kind, seed) for seed in seeds]
        names = list(seen[0])
        told = lambda what, each, seen=seen: [one[each][what] for one in seen if each in one]
        for how in ("clean", "shifted", "blurred", "attacked"):
            cells = {name: told(how, name) for name in names}
            measure = "accuracy" if kind == "class" else "R²"
            baseline = f"{PLAIN} {shown(cells[PLAIN])}{beside(cells)}"
            task = f"{data.__name__}, {how} test rows: {measure}, larger is better"
            rows.append(Row(task, "none found", shown(cells["sinkhorn"]), baseline, sum(told("seconds", "sinkhorn"))))
            notes.append(f"{task}: " + "; ".join(f"{name} {shown(values)}" for name, values in cells.items()) + ".")
        spent = ", ".join(f"{name} {np.mean(told('seconds', name)):.1f}" for name in names)
        notes.append(f"{data.__name__}, CPU seconds of a split: {spent}.")
    notes.append(
        f"{len(seeds)} random halves to learn from, the others to test; 95 % intervals over them. Sizes of sets and "
        f"penalties by cross-validation on clean rows. Shift {SHIFT}, blur {BLUR}, attack of length {ATTACK}, in "
        "standard deviations of columns; an attack is the worst move for the rule that it meets. Digits: 3 against 8."
    )
    notes.append(
        f"skwdro and dro, where they are installed: the first {SPLITS} splits, their sizes by {FOLDS} folds, dro's of "
        "the grid of ours. Seconds are CPU seconds of ours, all splits together."
    )
    compared("sinkhorn_dro", "Sinkhorn DRO", rows, notes, quick=quick)
