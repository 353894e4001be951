"""One table for many newsvendors: costs, service, and how sure the differences are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from bilevelax.base.errors import require_choice, require_package
from bilevelax.sklearn._scored import Outcome, newsvendor_in
from bilevelax.sklearn.baselines import SampleAverage

WORST = 0.1  # share of the rows in the worst-case mean


def metrics(outcome: Outcome, plain: Outcome | None = None) -> dict[str, float]:
    """Measures of one newsvendor.

    ``mean_cost`` of a row; ``relative_cost``, that divided by mean demand: the clairvoyant orders
    what is demanded and pays nothing, so this is the regret to it; ``service_level``, share of
    orders that cover demand; ``fill_rate``, share of demand that is met; ``worst_decile_cost``, mean
    of the dearest tenth; ``prescriptiveness``, 1 - cost / cost of the plain quantile
    (Bertsimas and Kallus 2020): 0 is as good as no context, 1 clairvoyant.
    """
    orders, demand, costs = outcome
    total = demand.sum()
    worst = np.sort(costs)[-max(1, round(WORST * len(costs))) :]
    row = {
        "mean_cost": float(costs.mean()),
        "relative_cost": float(costs.sum() / total) if total else float("nan"),
        "service_level": float(np.mean(orders >= demand)),
        "fill_rate": float(np.minimum(orders, demand).sum() / total) if total else float("nan"),
        "worst_decile_cost": float(worst.mean()),
    }
    if plain is not None:
        base = plain.costs.mean()
        row["prescriptiveness"] = float(1 - costs.mean() / base) if base else float("nan")
    return row


def paired_interval(
    costs: np.ndarray, reference: np.ndarray, level: float = 0.95, resamples: int = 999, random_state: Any = 0
) -> tuple[float, float]:
    """Percentile-bootstrap interval of the mean of costs - reference over the same rows.

    Rows are resampled one by one: serial dependence is ignored.
    """
    difference = np.asarray(costs) - np.asarray(reference)
    if np.ptp(difference) == 0:
        return float(difference[0]), float(difference[0])
    from scipy import stats  # here: it takes longer than orders do

    done = stats.bootstrap(
        (difference,),
        np.mean,
        confidence_level=level,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(random_state),
    )
    return float(done.confidence_interval.low), float(done.confidence_interval.high)


class Comparison(NamedTuple):
    """``table``: a data frame, one row a newsvendor; ``outcomes``: orders and costs on all test rows."""

    table: Any
    outcomes: dict[str, Outcome]

    def __str__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")


def tabulate(outcomes: Mapping[str, Outcome], plain: Outcome, reference: str) -> Comparison:
    """The table of given outcomes; differences are to ``reference``, negative is cheaper."""
    pandas = require_package("pandas", "compare", "sklearn")
    rows = {}
    for name, outcome in outcomes.items():
        low, high = paired_interval(outcome.costs, outcomes[reference].costs)
        difference = float(outcome.costs.mean() - outcomes[reference].costs.mean())
        rows[name] = {**metrics(outcome, plain), "difference": difference, "low": low, "high": high}
    return Comparison(pandas.DataFrame.from_dict(rows, orient="index"), dict(outcomes))


def compare(estimators: Mapping[str, Any], X: Any, y: Any, *, cv: Any = 5, reference: str | None = None) -> Comparison:
    """Fit every estimator on the same folds and compare costs on the same test rows.

    Args:
        estimators: newsvendors by name, e.g. ``{"robust": RobustNewsvendor(1, 9), **baselines(1, 9)}``.
            All need the same costs.
        X, y: contexts and demands in the order of time.
        cv: number of folds of `TimeSeriesSplit` (training rows always come first), any scikit-learn
            splitter, or a list of (train, test) indices.
        reference: name to whose costs the column ``difference`` compares; by default the first. ``low``
            and ``high`` are its 95 % paired bootstrap interval.
    """
    if not estimators:
        raise ValueError("`estimators` of compare must hold at least one estimator. Got none.")
    reference = next(iter(estimators)) if reference is None else reference
    require_choice("reference", "compare", reference, tuple(estimators))
    from sklearn.model_selection import TimeSeriesSplit

    splitter = TimeSeriesSplit(cv) if isinstance(cv, int) else cv
    folds = list(splitter.split(X, y) if hasattr(splitter, "split") else splitter)
    first = newsvendor_in(next(iter(estimators.values())))
    everyone: dict[Any, Any] = {**estimators, None: SampleAverage(first.holding_cost, first.backlog_cost)}
    outcomes: dict[Any, Outcome] = {}
    for name, estimator in everyone.items():
        parts = []
        for train, test in folds:
            fitted = clone(estimator).fit(_rows(X, train), _rows(y, train))
            parts.append(Outcome.of(fitted, _rows(X, test), _rows(y, test)))
        outcomes[name] = Outcome.joined(parts)
    plain = outcomes.pop(None)
    return tabulate(outcomes, plain, reference)


def _rows(a: Any, index: Any) -> Any:
    return a.iloc[index] if hasattr(a, "iloc") else np.asarray(a)[index]
