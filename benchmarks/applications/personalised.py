"""Clients that training never met, adapted from a few rows: `PersonalizedModel` as it comes beside six baselines.

``python benchmarks/run.py personalised`` writes the record, and docs/_static/rows_per_client.svg.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from published import Row, compared
from sklearn.linear_model import LogisticRegression

from bilevelax.datasets import load_omniglot, load_tinyimagenet
from bilevelax.sklearn import PersonalizedModel
from bilevelax.sklearn._adapting import Adapted, adapted, features_of

PICTURE = Path(__file__).parents[2] / "docs" / "_static" / "rows_per_client.svg"
CELLS = Path(__file__).parents[1] / "results" / "personalised_cells.json"  # an interrupted run goes on
CLIENTS = 60, 20, 40  # to train on, to tune baselines on, to test on
QUERY = 20  # rows of a client that are only tested on
COLUMNS = 64
ROWS = 5, 10, 20
SEEDS, QUICK = 2, 1
NORM = 5.0
PENALTIES = 0.003, 0.03, 0.3, 3.0
STEPS = 1, 5, 25, 100

Client = tuple[np.ndarray, np.ndarray]  # features, labels: rows to adapt on, then QUERY rows
Part = list[Client]


class Task(NamedTuple):
    """Clients of one seed."""

    train: Part
    tune: Part
    test: Part
    rows: int  # to adapt on


def tiny() -> np.ndarray:
    if not _tiny:
        loaded = load_tinyimagenet().features.reshape(200, 500, -1)
        _tiny.append(loaded[..., :COLUMNS].astype(float))
    return _tiny[0]


_tiny: list[np.ndarray] = []
IMAGES = (0, 400), (400, 450), (450, 500)  # of each class: for clients to train, tune and test on


def classes_of_their_own(seed: int, rows: int) -> Task:
    """Each client has 5 of 50 classes of tinyImageNet."""
    rng, features = np.random.default_rng((1, seed)), tiny()
    chosen = rng.choice(200, 50, replace=False)

    def one(images: tuple[int, int]) -> Client:
        mine = rng.choice(50, 5, replace=False)
        seen = np.concatenate([rng.permutation(mine)[:rows], rng.choice(mine, max(rows - 5, 0))])
        labels = np.concatenate([seen, rng.choice(mine, QUERY)])
        return features[chosen[labels], rng.integers(*images, len(labels))], labels

    return Task(*([one(images) for _ in range(n)] for n, images in zip(CLIENTS, IMAGES, strict=True)), rows)


def taste(seed: int, rows: int) -> Task:
    """Each client likes images by its own taste: a direction among the class means, shared in part, and noise."""
    rng, features = np.random.default_rng((2, seed)), tiny()
    means = features[:, :400].mean(axis=1)
    places = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[0][:, :8] * np.sqrt(200)
    common = rng.normal(size=8)

    def one(images: tuple[int, int]) -> Client:
        mine = common + 2 * rng.normal(size=8)
        classes = rng.integers(200, size=rows + QUERY)
        liked = places[classes] @ mine / np.linalg.norm(mine) + 0.3 * rng.normal(size=len(classes)) > 0
        return features[classes, rng.integers(*images, len(classes))], liked.astype(int)

    return Task(*([one(images) for _ in range(n)] for n, images in zip(CLIENTS, IMAGES, strict=True)), rows)


def characters(seed: int, rows: int) -> Task:
    """Each client tells 5 characters of an Omniglot alphabet apart; labels are numbers, alphabets disjoint."""
    rng, omniglot = np.random.default_rng((3, seed)), load_omniglot("pca", COLUMNS)
    alphabets = np.split(rng.permutation(50), [30, 37])
    each = min(-(-rows // 5), 16)

    def one(family: np.ndarray) -> Client:
        mine = rng.choice(np.flatnonzero(omniglot.groups == rng.choice(family)), 5, replace=False)
        drawn = np.stack([rng.permutation(np.flatnonzero(omniglot.labels == c)) for c in mine])
        numbers = np.arange(5)
        at = np.concatenate([drawn[:, :each].T.ravel(), drawn[:, each : each + 4].T.ravel()])
        return omniglot.features[at].astype(float), np.tile(numbers, each + 4)

    return Task(*([one(family) for _ in range(n)] for n, family in zip(CLIENTS, alphabets, strict=True)), 5 * each)


TASKS: dict[str, Callable[[int, int], Task]] = {
    "tinyImageNet, 5 of 50 classes a client": classes_of_their_own,
    "Omniglot, 5 characters a client": characters,
    "tinyImageNet, a taste per client": taste,
}


def rows_of(client: Client, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    features = features_of(client[0], NORM, True)
    return features[:n], client[1][:n], features[n:], client[1][n:]


def own(W: np.ndarray, a: np.ndarray, b: np.ndarray, penalty: float) -> np.ndarray:
    """Softmax regression on the client's rows alone, on the labels that it shows."""
    found = np.unique(b)
    made = np.full_like(W, 0.0)
    made[:, -1] = -1e9
    if len(found) == 1:
        made[found[0]] = 0.0
        return made
    model = LogisticRegression(C=1 / (penalty * len(b)), max_iter=300).fit(a[:, :-1], b)
    coefs = np.column_stack([model.coef_, model.intercept_])
    made[found] = np.concatenate([-coefs, coefs]) / 2 if len(found) == 2 else coefs
    return made


def ridge(W: np.ndarray, a: np.ndarray, b: np.ndarray, penalty: float) -> np.ndarray:
    """Softmax regression held at the pooled model."""
    return adapted(Adapted(np.arange(len(W)), W, None, True), penalty, a, b, 50, "this benchmark").W


def tuned(W: np.ndarray, a: np.ndarray, b: np.ndarray, steps: int) -> np.ndarray:
    """Steps of gradient descent from the pooled model, as long as the loss is surely smooth."""
    W, rate = W.copy(), 2 / (NORM**2 + 1)
    for _ in range(steps):
        logits = a @ W.T
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(b)), b] -= 1
        W -= rate * p.T @ a / len(b)
    return W


def shown(W: np.ndarray, a: np.ndarray, b: np.ndarray, _: float) -> np.ndarray:
    """The pooled model, which may only name labels that the client shows."""
    made = W.copy()
    made[np.setdiff1d(np.arange(len(W)), b), -1] = -1e9
    return made


def nearest(W: np.ndarray, a: np.ndarray, b: np.ndarray, _: float) -> np.ndarray:
    made = np.zeros_like(W)
    made[:, -1] = -1e9
    for c in np.unique(b):
        mean = a[b == c, :-1].mean(axis=0)
        made[c] = np.append(mean, -np.sum(mean**2) / 2)
    return made


BASELINES: dict[str, tuple[Callable[..., np.ndarray], tuple[float, ...]]] = {
    "pooled": (lambda W, a, b, _: W, (0.0,)),
    "pooled, on labels shown": (shown, (0.0,)),
    "own model only": (own, PENALTIES),
    "pooled, fine-tuned": (tuned, STEPS),
    "ridge towards pooled": (ridge, PENALTIES),
    "nearest centroid": (nearest, (0.0,)),
}


def accuracies(make: Callable[..., np.ndarray], W: np.ndarray, part: Part, n: int, setting: float) -> np.ndarray:
    """Of every client, on its query rows."""
    made = []
    for client in part:
        a, b, test, truth = rows_of(client, n)
        made.append(np.mean(np.argmax(test @ make(W, a, b, setting).T, axis=1) == truth))
    return np.array(made)


def pooled(task: Task, C: float, classes: int) -> np.ndarray:
    rows = np.concatenate([features_of(a, NORM, False) for a, _ in task.train])
    labels = np.concatenate([b for _, b in task.train])
    model = LogisticRegression(C=C, max_iter=200).fit(rows, labels)
    coefs, W = np.column_stack([model.coef_, model.intercept_]), np.zeros((classes, rows.shape[1] + 1))
    W[np.unique(labels)] = np.concatenate([-coefs, coefs]) / 2 if len(coefs) == 1 else coefs
    return W


def baselines(task: Task) -> dict[str, np.ndarray]:
    """Test accuracies of each, with the setting and the pooled model that are best on the clients to tune on."""
    classes = 1 + max(int(b.max()) for part in task[:3] for _, b in part)
    models = [pooled(task, C, classes) for C in (0.003, 0.05, 1.0)]
    found = {}
    for name, (make, settings) in BASELINES.items():
        starts = models if make not in (own, nearest) else models[:1]
        choices = [(W, setting) for W in starts for setting in settings]
        best = max(choices, key=lambda choice: accuracies(make, choice[0], task.tune, task.rows, choice[1]).mean())
        found[name] = accuracies(make, best[0], task.test, task.rows, best[1])
    return found


def ours(task: Task, seed: int) -> np.ndarray:
    """The defaults, on the clients to train on and those that the baselines are tuned on."""
    clients = [*task.train, *task.tune]
    groups = np.repeat(np.arange(len(clients)), [len(b) for _, b in clients])
    X, y = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    model = PersonalizedModel(random_state=seed).fit(X, y, groups)
    n = task.rows
    return np.array([model.adapt(a[:n], b[:n]).score(a[n:], b[n:]) for a, b in task.test])


def interval(values: np.ndarray) -> str:
    return f"{values.mean():.3f} +- {1.96 * values.std(ddof=1) / np.sqrt(len(values)):.3f}"


OURS = "PersonalizedModel"


def measured(name: str, rows: int, seeds: int) -> dict[str, np.ndarray]:
    """Accuracies of all test clients of all seeds."""
    found: dict[str, list[np.ndarray]] = {}
    for seed in range(seeds):
        task = TASKS[name](seed, rows)
        for method, values in {OURS: ours(task, seed), **baselines(task)}.items():
            found.setdefault(method, []).append(values)
    return {method: np.concatenate(values) for method, values in found.items()}


def remembered(name: str, rows: int, seeds: int) -> tuple[dict[str, np.ndarray], float]:
    """`measured` and its CPU seconds, of an earlier run where there was one."""
    place = f"{name} | {rows} | {seeds}"
    known = lambda: json.loads(CELLS.read_text()) if CELLS.exists() else {}
    if place not in known():
        begun = time.process_time()
        found = {each: values.tolist() for each, values in measured(name, rows, seeds).items()}
        CELLS.parent.mkdir(exist_ok=True)
        CELLS.write_text(json.dumps(known() | {place: [found, time.process_time() - begun]}))
    found, seconds = known()[place]
    return {each: np.array(values) for each, values in found.items()}, seconds


def run(quick: bool = False) -> None:
    made: list[Row] = []
    curves: dict[str, dict[int, dict[str, float]]] = {}
    for name in TASKS:
        for rows in (20,) if quick else ROWS:
            found, seconds = remembered(name, rows, QUICK if quick else SEEDS)
            best = max(BASELINES, key=lambda each: found[each].mean())
            gain = found[OURS] - found[best]
            curves.setdefault(name, {})[rows] = {each: float(values.mean()) for each, values in found.items()}
            others = ", ".join(f"{each} {found[each].mean():.3f}" for each in BASELINES)
            print(f"{name}, {rows} rows: ours {found[OURS].mean():.3f}; {others}", flush=True)
            made.append(
                Row(
                    f"{name}, {rows} rows each: accuracy on clients never met, larger is better",
                    "none found on this split",
                    f"{interval(found[OURS])}; gain {interval(gain)}",
                    f"{interval(found[best])} ({best})",
                    seconds,
                )
            )
    if not quick:
        draw(curves)
    compared("personalised", "Personalised federated learning", made, NOTES, quick=quick)


def draw(curves: dict[str, dict[int, dict[str, float]]]) -> None:
    """Accuracy over rows per client, one panel a task."""
    import matplotlib.pyplot as plt

    from bilevelax.report.curves import LINE_COLOURS

    figure, panels = plt.subplots(1, len(curves), figsize=(10, 3.4), layout="constrained")
    for panel, (name, by_rows) in zip(np.atleast_1d(panels), curves.items(), strict=True):
        for i, method in enumerate((OURS, *BASELINES)):
            style = {"color": LINE_COLOURS[i % len(LINE_COLOURS)], "linewidth": 2.5 if method == OURS else 1.2}
            panel.plot(list(by_rows), [each[method] for each in by_rows.values()], marker="o", label=method, **style)
        panel.set(xscale="log", xlabel="rows per client", title=name)
        panel.set_xticks(list(by_rows), [str(n) for n in by_rows])
        panel.minorticks_off()
    np.atleast_1d(panels)[0].set_ylabel("accuracy on clients never met")
    figure.legend(
        *np.atleast_1d(panels)[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    figure.savefig(PICTURE, metadata={"Date": None})


NOTES = (
    f"{CLIENTS[0]} clients to train on, {CLIENTS[1]} to tune on, {CLIENTS[2]} never met, of each of {SEEDS} seeds; "
    f"{QUERY} test rows a client; the first {COLUMNS} principal components.",
    "Images and alphabets of clients never met are nobody else's.",
    "Baselines choose their pooled model and setting on the clients to tune on; ours gets these as clients, untuned.",
    "Intervals: 95 %, over test clients; the gain is paired with the best baseline, chosen by its test accuracy.",
    "How adapting is learned was changed after test accuracies at 5 rows had been seen, of one or both seeds.",
    "Seconds are CPU seconds, on a shared machine.",
)

if __name__ == "__main__":
    run()
