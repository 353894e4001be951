"""Scores fitted to the smooth NDCG of queries in memory, and the ridge penalty chosen by folds of queries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from optax import tree
from scipy.optimize import minimize

from bilevelax.applications.ndcg_ranking import Queries, exact_ndcg, ndcg_of_query
from bilevelax.base.compiling import program

ALPHAS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4)  # for features in standard deviations and T = 1
FAR = -1e9  # score of an item that is not there


class Scores(NamedTuple):
    """How items are scored: ``of`` (x, one item's features), with the x to start from."""

    of: Callable[[Any, jax.Array], jax.Array]
    x1: Any


def softmax_of_query(scores: jax.Array, gain: jax.Array, there: jax.Array) -> jax.Array:
    """The listwise log-likelihood of gains as shares (ListNet): concave in the scores, where NDCG is not."""
    share = gain / jnp.maximum(gain.sum(), jnp.finfo(gain.dtype).tiny)
    return jnp.sum(share * there * jax.nn.log_softmax(jnp.where(there > 0, scores, FAR)))


def all_places(scores: jax.Array, gain: jax.Array, there: jax.Array) -> jax.Array:
    return ndcg_of_query(scores, gain, there, None, 1.0)


@functools.lru_cache(maxsize=8)
def slope_of(of: Callable[[Any, jax.Array], jax.Array]) -> Callable[..., Any]:
    """(x, queries, weight, alpha, smooth) -> (cost, gradient): one program for all folds and penalties."""

    def cost(x: Any, queries: Queries, weight: jax.Array, alpha: jax.Array, smooth: jax.Array) -> jax.Array:
        each = jax.vmap(jax.vmap(lambda a: of(x, a)))(queries.features)
        gains = [jax.vmap(f)(each, queries.gain, queries.there) for f in (softmax_of_query, all_places)]
        return alpha * tree.norm(x, squared=True) / 2 - jnp.sum(weight * jnp.where(smooth, gains[1], gains[0]))

    return program()(jax.value_and_grad(cost))


@functools.lru_cache(maxsize=8)
def scores_of(of: Callable[[Any, jax.Array], jax.Array]) -> Callable[..., Any]:
    """(x, features of queries (Q, n, d)) -> scores (Q, n)."""
    return program()(jax.vmap(jax.vmap(of, (None, 0)), (None, 0)))


class Fit:
    """Rules for the queries of a table; weights say which of them count."""

    def __init__(self, scores: Scores, queries: Queries, most: int) -> None:
        self.scores, self.queries, self.most = scores, queries, most
        self.arrays = Queries(*(jnp.asarray(a, float) for a in queries))
        self.unravel = ravel_pytree(scores.x1)[1]

    def descend(self, weight: np.ndarray, alpha: float, start: np.ndarray, smooth: bool) -> np.ndarray:
        share, size = jnp.asarray(weight / max(weight.sum(), 1), float), jnp.asarray(alpha, float)

        def at(flat: np.ndarray) -> tuple[float, np.ndarray]:
            x = self.unravel(jnp.asarray(flat, float))
            cost, slope = slope_of(self.scores.of)(x, self.arrays, share, size, jnp.asarray(smooth))
            return float(cost), np.asarray(ravel_pytree(slope)[0], np.float64)

        settings = {"maxiter": self.most, "gtol": 1e-6, "ftol": 1e-9}
        return np.asarray(minimize(at, start, jac=True, method="L-BFGS-B", options=settings).x)

    def path(self, weight: np.ndarray, alphas: tuple[float, ...]) -> list[np.ndarray]:
        """One rule for each penalty: the listwise softmax first, then NDCG, each from the rule before."""
        first = np.asarray(ravel_pytree(self.scores.x1)[0], np.float64)
        flat, found = self.descend(weight, max(alphas), first, False), []
        for alpha in alphas:
            flat = self.descend(weight, alpha, flat, True)
            found.append(flat)
        return found

    def ndcg(self, flat: np.ndarray, judged: Queries, k: int | None) -> np.ndarray:
        """The true NDCG@k of each query, whose gains in ``judged`` are made for k."""
        x = self.unravel(jnp.asarray(flat, float))
        return exact_ndcg(np.asarray(scores_of(self.scores.of)(x, self.arrays.features)), judged, k)


class Choice(NamedTuple):
    """Penalties tried, held-out NDCG@k of each with its standard error over queries; which is kept."""

    tried: tuple[float, ...]
    ndcg: np.ndarray
    stderr: np.ndarray
    best: int


def chosen(fit: Fit, judged: Queries, k: int | None, folds: int, rng: np.random.RandomState) -> Choice:
    """The penalty with the best NDCG@k on queries that were left out. ``judged``: the queries with gains made for k."""
    fold = rng.permutation(len(judged.gain)) % folds
    held: np.ndarray = np.zeros((len(ALPHAS), len(fold)))
    for f in range(folds):
        for c, flat in enumerate(fit.path((fold != f).astype(float), ALPHAS)):
            held[c, fold == f] = fit.ndcg(flat, judged, k)[fold == f]
    mean = np.nanmean(held, axis=1)
    return Choice(ALPHAS, mean, np.nanstd(held, axis=1) / np.sqrt(np.sum(~np.isnan(held[0]))), int(np.argmax(mean)))
