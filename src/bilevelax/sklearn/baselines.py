"""What a robust policy has to beat, with the same interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevelax.sklearn._scored import ScoredByCost, levels_of
from bilevelax.sklearn.conditional import make_conditional
from bilevelax.sklearn.newsvendor import RobustNewsvendor
from bilevelax.sklearn.stored_forest import Boosts

MOST_LEVELS = 5  # service levels that a baseline learns; a row with another takes the one next to it


class _Baseline(ScoredByCost, RegressorMixin, BaseEstimator):
    """Orders are estimated quantiles of demand at b / (h + b), output by output, row by row where costs differ."""

    def _start(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        self._flat = y.ndim == 1
        y = np.asarray(y, np.float64).reshape(len(y), -1)
        self.n_outputs_ = y.shape[1]
        self.levels_ = [few_of(np.unique(levels)) for levels in self._levels(X).T]
        return X, y

    def _levels(self, X: np.ndarray) -> np.ndarray:
        return levels_of(self, X, self.n_outputs_)

    def _contexts(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "levels_")
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _orders(self, orders: np.ndarray) -> np.ndarray:
        return orders[:, 0] if self._flat else orders

    def _nearest(self, X: np.ndarray, answers: Callable[[int, int, np.ndarray], Any]) -> np.ndarray:
        """Orders by ``answers(output, number of the level, rows)``, at that of `levels_` next to each row's own."""
        orders = np.empty((len(X), self.n_outputs_))
        for j, (grid, own) in enumerate(zip(self.levels_, self._levels(X).T, strict=True)):
            next_to = np.searchsorted((grid[1:] + grid[:-1]) / 2, own)
            for k in np.unique(next_to):
                rows = np.flatnonzero(next_to == k)
                orders[rows, j] = answers(j, k, rows)
        return self._orders(orders)


def few_of(levels: np.ndarray) -> np.ndarray:
    """At most `MOST_LEVELS` of many levels, evenly spread among them."""
    n = len(levels)
    return levels if n <= MOST_LEVELS else levels[np.linspace(0, n - 1, MOST_LEVELS).round().astype(int)]


class SampleAverage(_Baseline):
    """The same order for every context: the quantile of past demand."""

    def __init__(self, holding_cost: Any = 1.0, backlog_cost: Any = 3.0) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost

    def fit(self, X: Any, y: Any) -> SampleAverage:
        """Learn from demands y; contexts X are only counted."""
        X, y = self._start(X, y)
        self.order_ = [np.quantile(y[:, j], grid, method="inverted_cdf") for j, grid in enumerate(self.levels_)]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The order, for each row."""
        return self._nearest(self._contexts(X), lambda j, k, rows: self.order_[j][k])


class WeightedSampleAverage(_Baseline):
    """Quantiles of past demand, weighted by resemblance of the contexts (Bertsimas and Kallus 2020).

    Args:
        holding_cost, backlog_cost: as in `RobustNewsvendor`.
        conditional: as there.
        random_state: seed of the forest.
    """

    def __init__(
        self, holding_cost: Any = 1.0, backlog_cost: Any = 3.0, *, conditional: Any = "forest", random_state: Any = None
    ) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost
        self.conditional = conditional
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> WeightedSampleAverage:
        """Remember contexts and demands."""
        X, y = self._start(X, y)
        made = make_conditional(self.conditional, "WeightedSampleAverage")
        self.conditional_ = made.fit(X, y, random_state=self.random_state)
        return self

    def with_conditional(self, conditional: Any) -> WeightedSampleAverage:
        """Fitted by what was fitted on the rows before."""
        self._start(conditional.X_, conditional.y_)
        self.conditional_ = conditional
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The weighted quantile at each context."""
        contexts = self._contexts(X)
        return self._orders(self.conditional_.quantiles_of_rows(contexts, self._levels(contexts)))


class _PerOutput(_Baseline):
    """One scikit-learn regressor for each output and level."""

    def _regressor(self, level: float) -> Any:
        raise NotImplementedError

    def fit(self, X: Any, y: Any) -> _PerOutput:
        """Fit a regressor for each output, and for each level among a few where costs differ from row to row."""
        X, y = self._start(X, y)
        self.regressors_ = [
            [self._regressor(level).fit(X, y[:, j]) for level in grid] for j, grid in enumerate(self.levels_)
        ]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The estimated quantiles."""
        contexts = self._contexts(X)
        return self._nearest(contexts, lambda j, k, rows: self.regressors_[j][k].predict(contexts[rows]))

    def _first(self) -> np.ndarray:
        """Numbers of each output's first answer, where those of all outputs and levels are in one row."""
        return np.cumsum([0, *map(len, self.levels_)])

    def _require_number(self, what: str, found: int) -> None:
        wanted = sum(map(len, self.levels_))
        if found != wanted:
            raise ValueError(
                f"{type(self).__name__} needs {wanted} {what}, one for each output and level. Got {found}."
            )


class LinearQuantile(_PerOutput):
    """`sklearn.linear_model.QuantileRegressor` on standardised columns; ``alpha`` is its L1 penalty."""

    def __init__(self, holding_cost: Any = 1.0, backlog_cost: Any = 3.0, *, alpha: float = 1e-3) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost
        self.alpha = alpha

    def fit(self, X: Any, y: Any) -> LinearQuantile:
        """Fit a line for each output and level."""
        super().fit(X, y)
        self.lines_ = np.stack([line_of(each) for grid in self.regressors_ for each in grid])
        return self

    def with_stored(self, lines: np.ndarray, X: Any, y: Any) -> LinearQuantile:
        """Fitted by the ``lines_`` of one that was fitted on these rows before."""
        self._start(X, y)
        self._require_number("lines", len(lines))
        self.lines_ = lines
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The estimated quantiles."""
        contexts, first = self._contexts(X), self._first()
        value = lambda line, rows: line[0] + contexts[rows] @ line[1:]
        return self._nearest(contexts, lambda j, k, rows: value(self.lines_[first[j] + k], rows))

    def _regressor(self, level: float) -> Any:
        from sklearn.pipeline import make_pipeline  # here: `bilevelax newsvendor order` does not wait for it
        from sklearn.preprocessing import StandardScaler

        from bilevelax.sklearn._linear_quantile import LongQuantileRegressor

        return make_pipeline(StandardScaler(), LongQuantileRegressor(quantile=level, alpha=self.alpha))


def line_of(pipeline: Any) -> np.ndarray:
    """(constant, coefficients of the columns as they are) of scaled columns and a linear model."""
    scaler, model = pipeline[0], pipeline[-1]
    slope = model.coef_ / scaler.scale_
    return np.concatenate([[model.intercept_ - slope @ scaler.mean_], slope])


class BoostedQuantile(_PerOutput):
    """`sklearn.ensemble.GradientBoostingRegressor` with the quantile loss."""

    def __init__(
        self, holding_cost: Any = 1.0, backlog_cost: Any = 3.0, *, n_estimators: int = 100, random_state: Any = None
    ) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost
        self.n_estimators = n_estimators
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> BoostedQuantile:
        """Fit trees for each output and level."""
        super().fit(X, y)
        self.boosts_ = Boosts.of([each for grid in self.regressors_ for each in grid])
        return self

    def with_stored(self, boosts: Boosts, X: Any, y: Any) -> BoostedQuantile:
        """Fitted by the ``boosts_`` of one that was fitted on these rows before."""
        self._start(X, y)
        self._require_number("sets of trees", len(boosts.starts))
        self.boosts_ = boosts
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The estimated quantiles."""
        contexts, first = self._contexts(X), self._first()
        return self._nearest(contexts, lambda j, k, rows: self.boosts_.answers(contexts[rows], first[j] + k))

    def _regressor(self, level: float) -> Any:
        from sklearn.ensemble import GradientBoostingRegressor

        return GradientBoostingRegressor(
            loss="quantile", alpha=level, n_estimators=self.n_estimators, random_state=self.random_state
        )


def erm(holding_cost: Any = 1.0, backlog_cost: Any = 3.0, **settings: Any) -> RobustNewsvendor:
    """Empirical risk minimisation: the demand of each row as it was, nobody moves anything."""
    return RobustNewsvendor(holding_cost, backlog_cost, **{"penalty": np.inf, "conditional": "dirac", **settings})


def wdro(holding_cost: Any = 1.0, backlog_cost: Any = 3.0, **settings: Any) -> RobustNewsvendor:
    """Wasserstein DRO without side information: the adversary moves each context after it has seen the demand."""
    return RobustNewsvendor(holding_cost, backlog_cost, **{"conditional": "dirac", **settings})


def baselines(holding_cost: Any = 1.0, backlog_cost: Any = 3.0, random_state: Any = None) -> dict[str, Any]:
    """The usual ones by name, e.g. for `compare`."""
    costs = (holding_cost, backlog_cost)
    return {
        "quantile": SampleAverage(*costs),
        "neighbours": WeightedSampleAverage(*costs, conditional="knn"),
        "forest": WeightedSampleAverage(*costs, random_state=random_state),
        "linear quantile": LinearQuantile(*costs),
        "boosted quantile": BoostedQuantile(*costs, random_state=random_state),
    }
