"""`solve` in the place of the loops inside scikit-learn estimators: CPU seconds and quality at equal data.

``python benchmarks/solve_estimators.py [NAME ...]`` does all or some, ``tolerances`` another part. An estimator has a
process of its own; its loops take turns on the same tables, each with nothing compiled. Quality is of rows that the fit
did not see; the difference has a paired interval over tables. Where an estimator chooses penalties, one is given: what
is compared is the descent. A copy in results/benchmarks keeps the rows that were not run again.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import optax
from common import median, publish
from jax import random
from newsvendor_linear import table
from optax import tree

import bilevelax as bx
from bilevelax.applications._robust_linear import rule
from bilevelax.applications._softmax import centre
from bilevelax.applications.instrumental_variables import demand_design, grid, sales
from bilevelax.applications.sinkhorn_dro import linear_problem_of
from bilevelax.base.statistics import mean
from bilevelax.sklearn import (
    IVRegressor,
    MetaClassifier,
    NDCGRanker,
    PersonalizedModel,
    RobustClassifier,
    RobustNewsvendor,
    RobustRegressor,
)
from bilevelax.sklearn._robust_choice import Fitted
from bilevelax.sklearn._training import Trained

SEEDS = 4
MORE = {"MetaClassifier(lam=0.5)": 16}  # tables, where four did not decide
TOLERANCES = (0.5, 0.3, 0.2, 0.1, 0.05)
RECORD = Path(__file__).parents[1] / "results" / "benchmarks" / "solve_estimators.json"
Fit = Callable[[], Any]


class Case(NamedTuple):
    """An estimator's own loop, `solve`, and the quality of what either fits."""

    own: Fit
    solve: Fit
    score: Callable[[Any], float]
    quality: str


def solved(problem: bx.Problem, x1: Any, seed: int = 0, tol: float = 1e-2) -> Any:
    return bx.solve(problem, x1, key=random.key(seed), tol=tol, budget_seconds=120, progress=False).x


@contextmanager
def instead(place: str, function: Any) -> Iterator[None]:
    with mock.patch(place, function):
        yield


def under(place: str, function: Any, fit: Fit) -> Fit:
    """The same fit with another function at a place of the library."""

    def call() -> Any:
        with instead(place, function):
            return fit()

    return call


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


def adapting(cls: Any, seed: int, tol: float = 1e-2) -> Case:
    """A fixed penalty: RT-MLMC and Adam, 300 steps; `solve` on all rows."""
    known, new = digits(seed)

    def solving(model: Any, columns: int, steps: int) -> None:
        found = solved(model.problem_, centre(len(model.classes_), columns), seed, tol)
        model.centre_, model.n_iter_ = np.asarray(found["W"]), 1

    fit = lambda: cls(lam=0.5, random_state=seed).fit(*known)
    there = "bilevelax.sklearn.meta.MetaClassifier._fit_fixed"
    return Case(fit, under(there, solving, fit), new_clients(new), "accuracy on new clients")


def new_clients(new: Any) -> Callable[[Any], float]:
    X, y, groups = new
    shown = np.arange(len(y)) % 2 == 0

    def score(model: Any) -> float:
        each = []
        for i in np.unique(groups):
            learn, test = (groups == i) & shown, (groups == i) & ~shown
            each.append(model.adapt(X[learn], y[learn]).score(X[test], y[test]))
        return float(np.mean(each))

    return score


def halves(X: Any, y: Any, seed: int) -> tuple[Any, Any]:
    order = np.random.default_rng(seed).permutation(len(y))
    return (*((X[part], y[part]) for part in np.array_split(order, 2)),)


def robust(cls: Any, table: Callable[..., Any], quality: str, seed: int) -> Case:
    """Sinkhorn's ambiguity at its first sizes: L-BFGS on exact costs; `solve` on ``problem_``."""
    seen, new = halves(*table(return_X_y=True), seed)

    def solving(task: Any, weight: Any, sizes: Any, start: Any, tol: float, most: int) -> Fitted:
        found = solved(linear_problem_of(task.loss, task.a, task.targets[0], *sizes, 20), rule(task.a.shape[1]), seed)
        return Fitted(np.asarray(found["w"], float)[None], np.asarray(found["b"], float)[None], 1)

    fit = lambda: cls(lam=1.0, eps=0.1).fit(*seen)
    return Case(fit, under("bilevelax.sklearn.robust.fitted", solving, fit), lambda model: model.score(*new), quality)


def ranking(seed: int) -> Case:
    """Lists of ten with a linear truth: listwise softmax, then NDCG, by L-BFGS; `solve` on pairs from zero scores."""
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(2 * 600, 8)), rng.normal(size=8)
    y = np.clip(np.round(X @ w / np.linalg.norm(w) + rng.normal(size=len(X)) + 1), 0, 4)
    lists = np.arange(len(X)) // 10
    seen, new = ((X[part], y[part], lists[part]) for part in (lists < 60, lists >= 60))

    def solving(fit: Any, weight: Any, alphas: Any) -> list[np.ndarray]:
        from bilevelax.applications.ndcg_ranking import problem_of

        plain = problem_of(fit.scores.of, fit.queries, None, 1.0)
        f = lambda x, y, eta, xi: plain.f(x, y, eta, xi) + alphas[-1] * tree.norm(x, squared=True) / 2
        return [np.asarray(solved(plain.replace(f=f), fit.scores.x1, seed), float)]

    fit = lambda: NDCGRanker(alpha=1e-3, random_state=seed).fit(*seen)
    place = "bilevelax.sklearn._ranking_fit.Fit.path"
    return Case(fit, under(place, solving, fit), lambda model: model.score(*new), "NDCG@10 of new lists")


def newsvendor(seed: int, penalty: float = 1.0) -> Case:
    """A linear rule under a given penalty: gradients of the envelope and Adam; `solve` on the same problem."""
    X, y = table(seed)
    seen, new = (X[:400], y[:400]), (X[400:], y[400:])

    def solving(how: Any, lesson: Any, penalty: float, x1: Any, key: Any, T: int, patience: int = 0) -> Trained:
        x = solved(how.problem(how.under(lesson.rows, penalty)), x1, seed)
        return Trained(x, [x], [{"t": 1, "train": 0.0}], False)

    settings = {
        "penalty": penalty,
        "policy": "linear",
        "conditional": "knn",
        "ambiguity": "wasserstein",
        "random_state": seed,
    }
    fit = lambda: RobustNewsvendor(1.0, 9.0, **settings).fit(*seen)
    short = lambda model: np.maximum(new[1] - model.predict(new[0]), 0).mean()
    over = lambda model: np.maximum(model.predict(new[0]) - new[1], 0).mean()
    cost = lambda model: float(-9 * short(model) - over(model))
    return Case(fit, under("bilevelax.sklearn._search.train", solving, fit), cost, "minus the cost of new days")


def instrument(seed: int) -> Case:
    """The network's own loop is `solve`; the other one is Adam on all pairs, the best practice without it."""
    seen, judged = demand_design(500, 0.5, np.random.default_rng(seed)), grid()

    def descending(problem: bx.Problem, x1: Any, **_: Any) -> Any:
        rule = optax.adam(optax.cosine_decay_schedule(3e-2, 1000))
        return bx.minimize(problem, bx.saa("all"), rule, x1, key=random.key(seed), T=1000, progress=False)

    fit = lambda: IVRegressor("network", random_state=seed).fit(*seen)
    other = under("bilevelax.sklearn.instruments.solve", descending, fit)
    error = lambda model: -float(np.mean((model.predict(judged) - sales(judged)) ** 2))
    return Case(other, fit, error, "minus the squared error of h")


def cases() -> dict[str, Callable[[int], Case]]:
    from sklearn.datasets import load_breast_cancer, load_diabetes

    return {
        "MetaClassifier(lam=0.5)": lambda seed: adapting(MetaClassifier, seed),
        "PersonalizedModel(lam=0.5)": lambda seed: adapting(PersonalizedModel, seed),
        "RobustClassifier": lambda seed: robust(RobustClassifier, load_breast_cancer, "accuracy", seed),
        "RobustRegressor": lambda seed: robust(RobustRegressor, load_diabetes, "R2", seed),
        "NDCGRanker": ranking,
        "RobustNewsvendor": newsvendor,
        "RobustNewsvendor(penalty=inf)": lambda seed: newsvendor(seed, np.inf),
        'IVRegressor("network")': instrument,
    }


def fits(name: str, seeds: int) -> list[dict[str, Any]]:
    """Of each table both loops, the first one alternating."""
    found = []
    for seed in range(seeds):
        case = cases()[name](seed)
        loops = {"own": case.own, "solve": case.solve}
        for loop in sorted(loops, reverse=bool(seed % 2)):
            jax.clear_caches()
            began = time.process_time()
            model = loops[loop]()
            taken = time.process_time() - began
            found.append({"loop": loop, "seed": seed, "CPU s": taken, "quality": case.score(model)})
    return [{**one, "of": case.quality} for one in found]


def alone(name: str, seeds: int) -> list[dict[str, Any]]:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, str(seeds)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def paired(gain: np.ndarray) -> dict[str, float]:
    """Their mean with its 95 % interval."""
    value, low, high = mean(gain) if len(gain) > 1 else (float(gain.mean()), math.nan, math.nan)
    return {"difference": value, "low": low, "high": high}


def row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of CPU seconds, means of quality, and the paired difference with its 95 % interval."""
    own, theirs = ([run for run in runs if run["loop"] == loop] for loop in ("own", "solve"))
    quality = [np.array([run["quality"] for run in part]) for part in (own, theirs)]
    gain = quality[1] - quality[0]
    seconds = [median([run["CPU s"] for run in part]) for part in (own, theirs)]
    return {
        "estimator": name,
        "date": time.strftime("%Y-%m-%d"),
        "tables": len(gain),
        "own CPU s": seconds[0],
        "solve CPU s": seconds[1],
        "quality": runs[0]["of"],
        "own": float(quality[0].mean()),
        "solve": float(quality[1].mean()),
        **paired(gain),
    }


def run(quick: bool = False, names: list[str] | None = None) -> None:
    """Rows of others stay as the record has them."""
    before = {} if quick else {found["estimator"]: found for found in json.loads(RECORD.read_text())["rows"]}
    for name in names or cases():
        before[name] = row(name, alone(name, 1 if quick else MORE.get(name, SEEDS)))
        rows = [before[each] for each in cases() if each in before]
        notes = ["CPU s: median over tables. Quality: mean over them, high is good; difference: solve less own, 95 %."]
        publish("solve_estimators", "solve inside estimators", rows, notes)


def tolerances(quick: bool = False) -> None:
    """Does a tighter answer of a fixed penalty serve new clients? Ten tables that no other part sees."""
    score = lambda case: case.score(case.solve())
    tables = range(100, 101 if quick else 110)
    found = np.array([[score(adapting(MetaClassifier, seed, tol)) for seed in tables] for tol in TOLERANCES])
    rows = [
        {"tol": tol, "tables": len(tables), "accuracy on new clients": float(each.mean()), **paired(each - found[-1])}
        for tol, each in zip(TOLERANCES, found, strict=True)
    ]
    notes = ["difference: to the tightest tolerance, with its 95 % interval over tables."]
    publish("solve_tolerances", "MetaClassifier(lam=0.5) by solve: a tolerance and new clients", rows, notes)


if __name__ == "__main__":
    if "tolerances" in sys.argv:
        tolerances("--quick" in sys.argv)
    elif "--one" in sys.argv:
        name, seeds = sys.argv[2:]
        print(json.dumps(fits(name, int(seeds))))
    else:
        words = [word for word in sys.argv[1:] if not word.startswith("--")]
        run("--quick" in sys.argv, words or None)
