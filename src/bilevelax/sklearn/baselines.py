"""What a robust policy has to beat, with the same interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bilevelax.sklearn._scored import ScoredByCost, costs_of
from bilevelax.sklearn.conditional import make_conditional
from bilevelax.sklearn.newsvendor import RobustNewsvendor


class _Baseline(ScoredByCost, RegressorMixin, BaseEstimator):
    """Orders are estimated quantiles of demand at b / (h + b), output by output."""

    def _start(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        self._flat = y.ndim == 1
        y = np.asarray(y, np.float64).reshape(len(y), -1)
        holding, backlog = costs_of(self, (1, y.shape[1]))
        self.levels_ = (backlog / (holding + backlog))[0]
        return X, y

    def _contexts(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "levels_")
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _orders(self, orders: np.ndarray) -> np.ndarray:
        return orders[:, 0] if self._flat else orders


class SampleAverage(_Baseline):
    """The same order for every context: the quantile of past demand."""

    def __init__(self, holding_cost: Any = 1.0, backlog_cost: Any = 3.0) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost

    def fit(self, X: Any, y: Any) -> SampleAverage:
        """Learn from demands y; contexts X are only counted."""
        X, y = self._start(X, y)
        self.order_ = np.array(
            [np.quantile(y[:, j], level, method="inverted_cdf") for j, level in enumerate(self.levels_)]
        )
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The order, for each row."""
        rows = len(self._contexts(X))
        return self._orders(np.tile(self.order_, (rows, 1)))


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
        quantiles = self.conditional_.quantiles(contexts, self.levels_)  # (rows, levels, outputs)
        return self._orders(np.diagonal(quantiles, axis1=1, axis2=2).copy())


class _PerOutput(_Baseline):
    """One scikit-learn regressor for each output."""

    def _regressor(self, level: float) -> Any:
        raise NotImplementedError

    def fit(self, X: Any, y: Any) -> _PerOutput:
        """Fit a regressor for each output."""
        X, y = self._start(X, y)
        self.regressors_ = [self._regressor(level).fit(X, y[:, j]) for j, level in enumerate(self.levels_)]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The estimated quantiles."""
        contexts = self._contexts(X)
        return self._orders(np.column_stack([regressor.predict(contexts) for regressor in self.regressors_]))


class LinearQuantile(_PerOutput):
    """`sklearn.linear_model.QuantileRegressor` on standardised columns; ``alpha`` is its L1 penalty."""

    def __init__(self, holding_cost: Any = 1.0, backlog_cost: Any = 3.0, *, alpha: float = 1e-3) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost
        self.alpha = alpha

    def _regressor(self, level: float) -> Any:
        from sklearn.linear_model import QuantileRegressor  # here: `bilevelax newsvendor order` does not wait for it
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), QuantileRegressor(quantile=level, alpha=self.alpha))


class BoostedQuantile(_PerOutput):
    """`sklearn.ensemble.GradientBoostingRegressor` with the quantile loss."""

    def __init__(
        self, holding_cost: Any = 1.0, backlog_cost: Any = 3.0, *, n_estimators: int = 100, random_state: Any = None
    ) -> None:
        self.holding_cost = holding_cost
        self.backlog_cost = backlog_cost
        self.n_estimators = n_estimators
        self.random_state = random_state

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
