r"""Ranking by NDCG (K-SONG: Qiu et al. 2022): the rank of an item is a mean over the items of its query.

.. math::
    \max_x E_q \frac1{Z_q} \sum_{i \in q} \frac{2^{l_i} - 1}{\log_2(1 + r_i)} \sigma((k + \tfrac12 - r_i)/T), \quad
    r_i = \tfrac12 + n_q E_{j \in q} \, \sigma((s_x(j) - s_x(i))/T)

A conditional stochastic problem: contexts are pairs (query, item) of some relevance, eta is another item of the query,
the lower level is the mean. Z_q is the DCG of the best order, so that NDCG is at most 1. As T falls, r_i becomes the
rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.applications import Application
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.problem import Key, Problem, X
from bilevelax.problems.special_cases import conditional_stochastic

Scorer = Callable[[X, jax.Array], jax.Array]  # (x, features of an item) -> score
LARGEST = 60  # label whose gain 2^label is a number without doubt


class Queries(NamedTuple):
    """Items of every query, padded to the longest."""

    features: Any  # (Q, n, d)
    gain: Any  # (Q, n): (2^label - 1) / Z_q; 0 where there is no item
    there: Any  # (Q, n): 1 where there is one


class Item(NamedTuple):
    """A context: an item of a query."""

    features: jax.Array
    gain: jax.Array  # times contexts per query, so that the mean over contexts is that over queries
    size: jax.Array  # items of its query
    query: jax.Array


class Judged(NamedTuple):
    """The data leaves."""

    queries: Queries
    query: jax.Array  # (contexts,)
    item: jax.Array


def queries_of(features: Any, label: Any, counts: Any, k: int | None) -> Queries:
    """Rows in the order of their queries, of which query q has counts[q]."""
    counts = np.asarray(counts)
    n, row = int(counts.max()), np.concatenate([np.arange(c) for c in counts])
    query = np.repeat(np.arange(len(counts)), counts)
    place = lambda a: _placed(np.asarray(a, np.float64), query, row, (len(counts), n))
    gain, there = place(2.0 ** np.asarray(label, np.float64) - 1), place(np.ones(len(row)))
    best = -np.sort(-gain, axis=1)
    discount = np.log2(np.arange(2, n + 2))
    Z = (best / discount)[:, : k or n].sum(axis=1, keepdims=True)
    return Queries(place(features), np.where(Z > 0, gain / np.where(Z > 0, Z, 1), 0), there)


def _placed(rows: np.ndarray, query: np.ndarray, row: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    found = np.zeros((*shape, *rows.shape[1:]))
    found[query, row] = rows
    return found


def worth(rank: jax.Array, gain: jax.Array, k: int | None, T: Any) -> jax.Array:
    """What an item at a smooth rank adds to NDCG@k; no rank is below one half."""
    rank = jnp.maximum(rank, 0.5)
    top = 1.0 if k is None else jax.nn.sigmoid((k + 0.5 - rank) / T)
    return gain * top / jnp.log2(1 + rank)


def ndcg_of_query(scores: jax.Array, gain: jax.Array, there: jax.Array, k: int | None, T: Any) -> jax.Array:
    """The smooth NDCG@k of one query, all items at once: what the problem's F is the mean of, with its sign."""
    above = jax.nn.sigmoid((scores[None, :] - scores[:, None]) / T) * there[None, :]
    return jnp.sum(worth(0.5 + above.sum(axis=1), gain, k, T))


def exact_ndcg(scores: np.ndarray, queries: Queries, k: int | None) -> np.ndarray:
    """NDCG@k of each query by sorting; ``gain`` must be made for the same k. nan where nothing is relevant."""
    order = np.argsort(np.where(queries.there > 0, -scores, np.inf), axis=1, kind="stable")
    gain = np.take_along_axis(np.asarray(queries.gain), order, axis=1)[:, :k]
    relevant = queries.gain.sum(axis=1) > 0
    return np.where(relevant, (gain / np.log2(np.arange(2, gain.shape[1] + 2))).sum(axis=1), np.nan)


def problem_of(scorer: Scorer, queries: Queries, k: int | None, T: float) -> Problem:
    """Minus the smooth NDCG@k as a conditional stochastic problem over (query, item)."""
    query, item = np.nonzero(queries.gain)
    per_query = len(query) / len(np.unique(query))
    arrays = Queries(*(jnp.asarray(a, float) for a in queries))
    data = Judged(arrays, jnp.asarray(query, jnp.int32), jnp.asarray(item, jnp.int32))

    def at(i: Any, data: Judged) -> Item:
        q, j = data.query[i], data.item[i]
        own = jax.tree.map(lambda a: a[q], data.queries)
        return Item(own.features[j], per_query * own.gain[j], own.there.sum(), q)

    def h(x: X, eta: jax.Array, xi: Item) -> jax.Array:
        return jax.nn.sigmoid((scorer(x, eta) - scorer(x, xi.features)) / T)

    def draw(key: Key, xi: Item, data: Judged) -> jax.Array:
        j = random.randint(key, (), 0, xi.size.astype(jnp.int32))
        return data.queries.features[xi.query, j]

    def support(xi: Item, data: Judged) -> tuple[jax.Array, jax.Array]:
        return data.queries.features[xi.query], data.queries.there[xi.query] / xi.size

    problem = conditional_stochastic(
        lambda x, y, xi: -worth(0.5 + xi.size * y, xi.gain, k, T),
        h,
        lambda key, data: at(random.randint(key, (), 0, len(query)), data),
        draw,
        data,
        init_y=lambda x, xi: jnp.full((), 0.5, xi.features.dtype),
    )
    return problem.replace(n_contexts=len(query), context_at=at, support=support)


def made_queries(Q: int, n: int, d: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features, labels 0..4, counts): labels are a noisy linear score, cut in fifths of fewer and fewer items."""
    counts = rng.integers(max(2, n // 2), n + 1, Q)
    features = rng.normal(size=(counts.sum(), d))
    score = features @ (1 / np.sqrt(1 + np.arange(d))) + rng.normal(size=len(features))
    return features, np.digitize(score, np.quantile(score, [0.5, 0.75, 0.9, 0.97])), counts


def linear(x: X, features: jax.Array) -> jax.Array:
    return features @ x


SMALLEST = {"queries": 2, "items": 3, "d": 2, "k": None}  # for the contract tests


def make(
    queries: int = 50, items: int = 20, d: int = 5, k: int | None = 5, temperature: float = 0.3, seed: int = 0
) -> Application:
    """Linear scores that rank made queries well.

    Metrics: ``surrogate`` is the smooth NDCG@k that is maximised, ``train_ndcg`` and ``test_ndcg`` the true one on
    these and on ten times as many fresh queries.

    Args:
        queries: training queries.
        items: in the longest of them.
        d: features of an item.
        k: how many places count; None for all.
        temperature: T, the difference of scores at which an item is three quarters above another.
        seed: of the queries.
    """
    for name, count, least in (("queries", queries, 1), ("items", items, 2), ("d", d, 1)):
        require_integer(name, "ndcg_ranking", count, least)
    if k is not None:
        require_integer("k", "ndcg_ranking", k, 1)
    require_positive("temperature", "ndcg_ranking", temperature)
    rng = np.random.default_rng(seed)
    train, test = (queries_of(*made_queries(Q, items, d, rng), k) for Q in (queries, 10 * queries))

    def metrics(x: X) -> dict[str, float]:
        smooth = jax.vmap(lambda s, gain, there: ndcg_of_query(s, gain, there, k, temperature))
        scores = jnp.asarray(train.features, float) @ x
        found = smooth(scores, *(jnp.asarray(a, float) for a in train[1:]))
        relevant = train.gain.sum(axis=1) > 0
        exact = {
            f"{name}_ndcg": exact_ndcg(q.features @ np.asarray(x), q, k)
            for name, q in (("train", train), ("test", test))
        }
        return {"surrogate": float(np.asarray(found)[relevant].mean())} | {
            n: float(np.nanmean(v)) for n, v in exact.items()
        }

    return Application(problem_of(linear, train, k, temperature), jnp.zeros(d, float), metrics)
