"""`NDCGRanker`: scores whose order has a high NDCG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from bilevelax.applications.ndcg_ranking import LARGEST, Queries, exact_ndcg, linear, problem_of, queries_of
from bilevelax.applications.newsvendor.policies import mlp
from bilevelax.base.compiling import program
from bilevelax.base.declared import integer, number
from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core.problem import Problem
from bilevelax.sklearn._ranking_fit import ALPHAS, Choice, Fit, Scores, chosen
from bilevelax.sklearn.persist_rules import KeptInFolder, require_above_zero

OWNER = "NDCGRanker"
DECLARED = {"alpha": number(1e-300), "seed": integer(0, 2**31)}


class NDCGRanker(KeptInFolder, BaseEstimator):
    r"""Scores that put what is relevant first: the NDCG of queries, with smooth ranks, maximised itself.

    .. math::
        \max_x E_q \frac1{Z_q} \sum_{i \in q} \frac{2^{l_i} - 1}{\log_2(1 + r_i)} - \frac\alpha2 |x|^2, \quad
        r_i = \tfrac12 + \sum_{j \in q} \sigma(s_x(j) - s_x(i))

    ``problem_`` is the same as a conditional stochastic problem over (query, item), for lists too long for memory; here
    all items of a query are at hand, so its lower level is computed, not sampled. L-BFGS starts at the rule of a
    listwise softmax loss. Columns are standardised.

    Args:
        k: places that count in ``score`` and in the choice of ``alpha``; None for all. Training always counts all.
        scores: ``"linear"``, or ``"mlp"`` for a network of two small layers beside a linear path.
        alpha: ridge penalty, or ``"cv"``: chosen by the NDCG@k of queries that are left out.
        cv: folds of queries.
        max_iter: steps of L-BFGS at most, for each penalty.
        random_state: seed of the folds and of the network.

    Attributes:
        alpha_: the penalty used; ``choice_`` has what was tried, None where nothing was to choose.
        coef_: of linear scores, in the units of X.
        problem_, x_: the problem without the penalty, and the rule found.
    """

    _declared = DECLARED

    def __init__(
        self,
        k: int | None = 10,
        *,
        scores: str = "linear",
        alpha: Any = "cv",
        cv: int = 5,
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.k = k
        self.scores = scores
        self.alpha = alpha
        self.cv = cv
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any, qid: Any = None, groups: Any = None) -> NDCGRanker:
        """Learn from items X (n, d) with labels y >= 0, larger is better.

        Args:
            X, y: items and their relevance; the gain of a label l is 2^l - 1.
            qid: to which query each item belongs; by default all are of one.
            groups: another name for ``qid``.
        """
        self._require_settings()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        qid = _queries(qid if qid is not None else groups, X)
        _require_labels(y)
        self._centre, scale = X.mean(axis=0), X.std(axis=0)
        self._scale = np.where(scale > 1e-12 * (1 + np.abs(self._centre)), scale, 1.0)
        rng = check_random_state(self.random_state)
        self._seed = int(rng.randint(2**31 - 1))
        Z = (X - self._centre) / self._scale
        self._queries = _grouped(Z, y, qid, None)
        fit = Fit(self._scores(), self._queries, self.max_iter)
        folds = min(self.cv, len(self._queries.gain))
        self.choice_: Choice | None = None
        path: tuple[float, ...]
        if self.alpha != "cv":
            self.alpha_, path = float(self.alpha), (float(self.alpha),)
        elif folds < 2:
            self.alpha_, path = ALPHAS[0], ALPHAS[:1]
        else:
            self.choice_ = chosen(fit, _grouped(Z, y, qid, self.k), self.k, folds, rng)
            self.alpha_, path = ALPHAS[self.choice_.best], ALPHAS[: self.choice_.best + 1]
        self._flat = fit.path(np.ones(len(self._queries.gain)), path)[-1]
        self._tell()
        return self

    def _tell(self) -> None:
        if self.scores == "linear":
            self.coef_ = np.asarray(self._flat, np.float64) / self._scale
        self.is_fitted_ = True

    def _kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {"centre": self._centre, "scale": self._scale, "rule": self._flat}
        return {"alpha": self.alpha_, "seed": self._seed}, arrays

    def _shapes(self, fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        self._seed = fitted["seed"]
        d = self.n_features_in_
        return {"centre": (d,), "scale": (d,), "rule": ravel_pytree(self._scores().x1)[0].shape}

    def _restore(self, fitted: dict[str, Any], arrays: dict[str, np.ndarray], path: Path) -> None:
        require_above_zero(path, "scale", arrays["scale"])
        self._centre, self._scale, self._flat = arrays["centre"], arrays["scale"], arrays["rule"]
        self.alpha_, self.choice_ = fitted["alpha"], None
        self._tell()

    def _require_settings(self) -> None:
        require_choice("scores", OWNER, self.scores, ("linear", "mlp"))
        require_integer("max_iter", OWNER, self.max_iter, 1)
        require_integer("cv", OWNER, self.cv, 2)
        if self.k is not None:
            require_integer("k", OWNER, self.k, 1)
        if not (isinstance(self.alpha, str) and self.alpha == "cv"):
            require_positive("alpha", OWNER, self.alpha)

    def _scores(self) -> Scores:
        """Linear scores without a constant, which no order depends on; or a network."""
        d = self.n_features_in_
        if self.scores == "linear":
            return Scores(linear, jnp.zeros(d, float))
        x1, static = eqx.partition(mlp(d, 1, random.key(self._seed)), eqx.is_inexact_array)
        return Scores(lambda x, a: eqx.combine(x, static)(a)[0], x1)

    @property
    def x_(self) -> Any:
        return ravel_pytree(self._scores().x1)[1](jnp.asarray(self._flat, float))

    @property
    def problem_(self) -> Problem:
        """Minus the smooth NDCG over pairs (query, item) of the training rows, for `minimize`, `solve` and `check`."""
        check_is_fitted(self, "is_fitted_")
        if not hasattr(self, "_queries"):
            raise ValueError(f"This {OWNER} was loaded without its queries, so `problem_` needs a new fit.")
        return problem_of(self._scores().of, self._queries, None, 1.0)

    def predict(self, X: Any) -> np.ndarray:
        """Scores (n,): within a query, larger ones go first."""
        check_is_fitted(self, "is_fitted_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        Z = (X - self._centre) / self._scale
        if self.scores == "linear":
            return Z @ np.asarray(self._flat)
        of, x = self._scores().of, self.x_
        return np.asarray(program()(jax.vmap(of, (None, 0)))(x, jnp.asarray(Z, float)), np.float64)

    def score(self, X: Any, y: Any, qid: Any = None, groups: Any = None) -> float:
        """The mean NDCG@k over queries in which something is relevant."""
        return float(np.nanmean(self.ndcg(X, y, qid if qid is not None else groups)))

    def ndcg(self, X: Any, y: Any, qid: Any = None) -> np.ndarray:
        """NDCG@k of each query, in the order of their ids; nan where nothing is relevant."""
        scores = self.predict(X)
        y = column_or_1d(y)
        check_consistent_length(scores, y)
        _require_labels(y)
        queries = _grouped(scores[:, None], y, _queries(qid, scores), self.k)
        return exact_ndcg(queries.features[..., 0], queries, self.k)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        return tags


def _queries(qid: Any, X: np.ndarray) -> np.ndarray:
    if qid is None:
        return np.zeros(len(X), int)
    qid = column_or_1d(qid)
    check_consistent_length(X, qid)
    return np.unique(qid, return_inverse=True)[1]


def _require_labels(y: np.ndarray) -> None:
    if np.min(y) < 0 or np.max(y) > LARGEST:
        raise ValueError(
            f"y of {OWNER} must hold labels between 0 and {LARGEST}: the gain of a label l is 2^l - 1. "
            f"Got {np.min(y):g} to {np.max(y):g}."
        )


def _grouped(rows: np.ndarray, y: np.ndarray, qid: np.ndarray, k: int | None) -> Queries:
    order = np.argsort(qid, kind="stable")
    return queries_of(rows[order], np.asarray(y, float)[order], np.bincount(qid), k)
