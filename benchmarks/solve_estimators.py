"""`solve` in the place of the loops inside scikit-learn estimators: CPU seconds and quality at equal data.

``python benchmarks/solve_estimators.py [NAME ...]`` does all or some. Each fit has a process of its own with nothing
compiled; quality is of rows that the fit did not see.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from common import median, publish
from jax import random

import bilevelax as bx
from bilevelax.sklearn import MetaClassifier, PersonalizedModel

SEEDS = (0, 1, 2)
Fit = Callable[[], Any]


class Case(NamedTuple):
    """An estimator with its loop and with another; ``score`` of what either fits."""

    loops: dict[str, Fit]
    score: Callable[[Any], dict[str, float]]
    better: str  # which way


def solved(problem: bx.Problem, x1: Any, seed: int = 0, tol: float = 1e-2) -> Any:
    return bx.solve(problem, x1, key=random.key(seed), tol=tol, progress=False).x


def digits(seed: int, clients: int = 60, rows: int = 24) -> tuple[Any, Any]:
    """Clients with three digits each, in two tables: known clients and new ones, half of whose rows are shown."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    rng, parts = np.random.default_rng(seed), []
    for client in range(clients):
        own = np.flatnonzero(np.isin(y, rng.choice(10, 3, replace=False)))
        at = rng.choice(own, rows, replace=False)
        parts.append((X[at] / 16, y[at], np.full(rows, client)))
    join = lambda parts: tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))
    return join(parts[: 2 * clients // 3]), join(parts[2 * clients // 3 :])


def adapting(cls: Any, seed: int) -> Case:
    """A fixed penalty: RT-MLMC and Adam, 300 steps; `solve` on all rows."""
    known, new = digits(seed)

    def with_solve() -> Any:
        model = cls(lam=0.5, max_iter=1, random_state=seed)
        model._fit_fixed = lambda columns, steps: setattr(
            model, "centre_", np.asarray(solved(model.problem_, centre(columns), seed)["W"])
        )
        return model.fit(*known)

    centre = lambda columns: {"W": jnp.zeros((10, columns), float)}
    return Case({"RT-MLMC, Adam": lambda: minimised(cls, known, seed), "solve": with_solve}, new_clients(new), "high")


def minimised(cls: Any, known: Any, seed: int) -> Any:
    """A fixed penalty by RT-MLMC and Adam, 300 steps."""
    from bilevelax.applications._softmax import centre

    model = cls(lam=0.5, random_state=seed)

    def fit(columns: int, steps: int) -> None:
        estimator = bx.minibatch(bx.rt_mlmc(4), 16, contexts="spread")
        rule = optax.adam(optax.cosine_decay_schedule(3e-2, 300))
        x1 = centre(len(model.classes_), columns)
        found = bx.minimize(model.problem_, estimator, rule, x1, key=random.key(seed), T=300, progress=False)
        model.centre_ = np.asarray(found.x["W"])

    model._fit_fixed = fit
    return model.fit(*known)


def new_clients(new: Any) -> Callable[[Any], dict[str, float]]:
    X, y, groups = new
    shown = np.arange(len(y)) % 2 == 0

    def score(model: Any) -> dict[str, float]:
        each = []
        for i in np.unique(groups):
            learn, test = (groups == i) & shown, (groups == i) & ~shown
            each.append(model.adapt(X[learn], y[learn]).score(X[test], y[test]))
        return {"accuracy on new clients": float(np.mean(each))}

    return score


def cases() -> dict[str, Callable[[int], Case]]:
    return {
        "MetaClassifier(lam=0.5)": lambda seed: adapting(MetaClassifier, seed),
        "PersonalizedModel(lam=0.5)": lambda seed: adapting(PersonalizedModel, seed),
    }


def alone(name: str, loop: str, seed: int) -> dict[str, float] | None:
    """CPU seconds and quality in a process of its own; None where it fails."""
    command = [sys.executable, __file__, "--one", name, loop, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(name, loop, done.stderr[-600:], sep="\n", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compare(name: str, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """One row a loop, seeds and loops taking turns."""
    case = cases()[name](0)
    found = {loop: [one for seed in seeds if (one := alone(name, loop, seed))] for loop in case.loops}
    rows = []
    for loop, runs in found.items():
        if not runs:
            continue
        (quality,) = [key for key in runs[0] if key != "CPU s"]
        means = {"quality": float(np.mean([run[quality] for run in runs])), "what": f"{quality}, {case.better} is good"}
        rows.append({"estimator": name, "loop": loop, "CPU s": median([run["CPU s"] for run in runs]), **means})
    return rows


def run(quick: bool = False, names: list[str] | None = None) -> None:
    rows: list[dict[str, Any]] = []
    for name in names or cases():
        rows += compare(name, SEEDS[:1] if quick else SEEDS)
        notes = ["CPU s: median over tables, quality: mean over them, of rows that were not seen."]
        publish("solve_estimators", "solve inside estimators", rows, notes)


if __name__ == "__main__":
    if "--one" in sys.argv:
        name, loop, seed = sys.argv[2:]
        case = cases()[name](int(seed))
        began = time.process_time()
        model = case.loops[loop]()
        taken = time.process_time() - began
        print(json.dumps({"CPU s": taken, **case.score(model)}))
    else:
        words = [word for word in sys.argv[1:] if not word.startswith("--")]
        run("--quick" in sys.argv, words or None)
