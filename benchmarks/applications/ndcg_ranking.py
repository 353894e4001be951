"""NDCG@5 and @10 on the example task of LightGBM: NDCGRanker, lambdarank, boosted regression, listwise softmax."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from common import installed
from published import Row, compared

from bilevelax.applications.ndcg_ranking import exact_ndcg, linear, queries_of
from bilevelax.datasets.lambdarank import Ranked, is_there, load_lambdarank
from bilevelax.sklearn import NDCGRanker
from bilevelax.sklearn._ranking_fit import ALPHAS, Fit, Scores

PLACES, BOOTSTRAP, HELD = (5, 10), 10_000, 0.25
Model = Callable[[np.ndarray], np.ndarray]  # features -> scores


def ndcg(scores: np.ndarray, data: Ranked, k: int) -> np.ndarray:
    queries = queries_of(scores[:, None], data.y, np.bincount(data.qid), k)
    return exact_ndcg(queries.features[..., 0], queries, k)


def some(data: Ranked, queries: np.ndarray) -> Ranked:
    rows = np.isin(data.qid, queries)
    return Ranked(data.X[rows], data.y[rows], np.unique(data.qid[rows], return_inverse=True)[1])


def lambdarank(data: Ranked, seed: int, leaves: int, least: int, rounds: int) -> Model:
    from lightgbm import LGBMRanker

    model = LGBMRanker(
        objective="lambdarank",
        num_leaves=leaves,
        min_child_samples=least,
        n_estimators=rounds,
        learning_rate=0.05,
        colsample_bytree=0.7,
        random_state=seed,
        n_jobs=1,
        verbose=-1,
    )
    fitted = model.fit(data.X, data.y, group=np.bincount(data.qid))
    return lambda X: fitted.booster_.predict(X)


def pointwise(data: Ranked, seed: int, leaves: int, least: int, rounds: int) -> Model:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_leaf_nodes=leaves,
        min_samples_leaf=least,
        max_iter=rounds,
        learning_rate=0.05,
        max_features=0.7,
        random_state=seed,
    )
    return model.fit(data.X, data.y).predict


def softmax(data: Ranked, seed: int, alpha: float) -> Model:
    """Linear scores by the listwise softmax loss: where NDCGRanker starts."""
    centre, scale = data.X.mean(0), data.X.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    queries = queries_of((data.X - centre) / scale, data.y, np.bincount(data.qid), None)
    fit = Fit(Scores(linear, jnp.zeros(data.X.shape[1])), queries, 100)
    flat = fit.descend(np.ones(len(queries.gain)), alpha, np.zeros(data.X.shape[1]), smooth=False)
    return lambda X: (X - centre) / scale @ flat


def ours(data: Ranked, seed: int, alpha: float) -> Model:
    return NDCGRanker(alpha=alpha).fit(*data).predict


TREES = tuple(itertools.product((7, 15), (20, 50), (50, 100)))
WAYS: dict[str, tuple[Callable[..., Model], tuple[Any, ...]]] = {
    "NDCGRanker": (ours, tuple((a,) for a in ALPHAS)),
    "LightGBM lambdarank": (lambdarank, TREES),
    "boosted regression on labels": (pointwise, TREES),
    "softmax loss, linear": (softmax, tuple((10.0**e,) for e in (-2, -1, 0, 0.5, 1))),
}


def tuned(way: str, data: Ranked, seed: int) -> dict[int, Model]:
    """For each k: settings with the best NDCG@k on a quarter of the training queries, then all of them."""
    make, settings = WAYS[way]
    order = np.random.default_rng(seed).permutation(data.qid.max() + 1)
    cut = round(HELD * len(order))
    train, held = some(data, order[cut:]), some(data, order[:cut])
    scores = [make(train, seed, *s)(held.X) for s in settings]
    best = {k: int(np.argmax([np.nanmean(ndcg(each, held, k)) for each in scores])) for k in PLACES}
    made = {c: make(data, seed, *settings[c]) for c in set(best.values())}
    return {k: made[c] for k, c in best.items()}


def interval(values: np.ndarray) -> str:
    """Mean over queries of the mean over seeds, and a 95 % bootstrap interval over queries."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (BOOTSTRAP, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def run(quick: bool = False) -> None:
    if not is_there() or not installed("lightgbm"):
        raise SystemExit("ndcg_ranking needs lightgbm and BILEVELAX_DATA, the folder of the lambdarank files.")
    train, test = load_lambdarank(), load_lambdarank("test")
    begin, rows, notes = time.process_time(), [], []
    models = {way: [tuned(way, train, seed) for seed in range(1 if quick else 3)] for way in WAYS}
    for k in PLACES:
        each = {way: np.mean([ndcg(m[k](test.X), test, k) for m in found], axis=0) for way, found in models.items()}
        relevant = ~np.isnan(each["NDCGRanker"])
        each = {way: values[relevant] for way, values in each.items()}
        rivals = {way: values for way, values in each.items() if way != "NDCGRanker"}
        best = max(rivals, key=lambda way: rivals[way].mean())
        seconds = time.process_time() - begin
        task = f"LightGBM example, NDCG@{k}, larger is better; 201 training, {relevant.sum()} test queries"
        rows.append(Row(task, "none found", interval(each["NDCGRanker"]), f"{best} {interval(rivals[best])}", seconds))
        notes.append(f"NDCG@{k}: " + "; ".join(f"{way} {interval(values)}" for way, values in each.items()) + ".")
        notes.append(f"NDCG@{k}, ours less {best}, paired: {interval(each['NDCGRanker'] - rivals[best])}.")
    notes.append(
        f"Every method has the same features and is tuned on a random quarter of the training queries, "
        f"{1 if quick else 3} seeds; intervals are bootstraps over test queries. Seconds of CPU, shared machine."
    )
    compared("ndcg_ranking", "Ranking by NDCG", rows, notes, quick=quick)
