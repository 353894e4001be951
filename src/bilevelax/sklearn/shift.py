"""Costs when contexts are not what they were: the stress test of a robust policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from bilevelax.base.errors import require_choice, require_package
from bilevelax.report.curves import LINE_COLOURS
from bilevelax.report.figures import figure_of, saved
from bilevelax.sklearn.compare import Outcome, metrics
from bilevelax.tables.columns import move_scales, names_of

KINDS = ("mean", "scale", "noise", "heavy_tails")
FREEDOM = 2.0  # of Student's t: no variance


def shifted(
    X: Any,
    shift: str | Callable[[Any], Any] = "mean",
    *,
    size: float = 1.0,
    columns: Any = "auto",
    random_state: Any = 0,
) -> Any:
    """Contexts after a shift; a data frame stays one.

    Args:
        X: contexts.
        shift: ``"mean"`` adds ``size`` standard deviations, ``"scale"`` multiplies the distance to the
            mean by 1 + ``size``, ``"noise"`` adds normal errors of ``size`` deviations,
            ``"heavy_tails"`` Student errors with 2 degrees of freedom of that scale; or a function
            X -> X.
        size: how much.
        columns: which columns, as ``perturb`` of `RobustNewsvendor`.
        random_state: seed of the errors.
    """
    if callable(shift):
        return shift(X)
    require_choice("shift", "shifted", shift, KINDS)
    values = np.asarray(X, dtype=float)
    factors = move_scales(columns, values, names_of(X), None)
    deviation, centre = values.std(axis=0) * factors, values.mean(axis=0)
    rng = np.random.default_rng(random_state)
    if shift == "mean":
        moved = values + size * deviation
    elif shift == "scale":
        moved = centre + (values - centre) * (1 + size * (factors > 0))
    elif shift == "noise":
        moved = values + size * deviation * rng.normal(size=values.shape)
    else:
        moved = values + size * deviation * rng.standard_t(FREEDOM, size=values.shape)
    if names_of(X) is None:
        return moved
    return require_package("pandas", "shifted", "sklearn").DataFrame(moved, columns=X.columns, index=X.index)


def evaluate_shift(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    shift: Any = "mean",
    size: float = 1.0,
    columns: Any = "auto",
    random_state: Any = 0,
) -> dict[str, float]:
    """Costs of a fitted newsvendor before and after a shift of the contexts that it sees.

    Demand stays what it was: the shift is an error of what is known when the order is placed (a
    forecast of the weather, a sensor, a changed unit). For a change that demand takes part in,
    hold out a season: ``shift="season"``.

    Args:
        estimator: fitted; cloned and fitted again for ``"season"``.
        X, y: test rows; all rows for ``"season"``.
        shift, size, columns, random_state: as in `shifted`. ``"season"`` with a mask of the rows in
            ``columns``: fit on the other rows, pay on these.
    """
    if isinstance(shift, str) and shift == "season":
        return _season(estimator, X, y, columns)
    before = metrics(Outcome.of(estimator, X, y))
    moved = shifted(X, shift, size=size, columns=columns, random_state=random_state)
    after = metrics(Outcome.of(estimator, moved, y))
    return _joined(before, after)


def _season(estimator: Any, X: Any, y: Any, mask: Any) -> dict[str, float]:
    inside = np.asarray(mask)
    if inside.dtype != bool or inside.shape != (len(X),) or not inside.any() or inside.all():
        raise ValueError(
            "`columns` of evaluate_shift must be a mask of the rows of the season where shift is 'season', "
            f"some of them True and some False. Got {mask!r:.60}."
        )
    take = lambda a, rows: a[rows] if not hasattr(a, "iloc") else a.iloc[np.flatnonzero(rows)]
    fitted = clone(estimator).fit(take(X, ~inside), take(y, ~inside))
    before = metrics(Outcome.of(fitted, take(X, ~inside), take(y, ~inside)))
    return _joined(before, metrics(Outcome.of(fitted, take(X, inside), take(y, inside))))


def _joined(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        "cost": before["mean_cost"],
        "shifted_cost": after["mean_cost"],
        "increase": after["mean_cost"] / before["mean_cost"] - 1 if before["mean_cost"] else float("nan"),
        "service_level": before["service_level"],
        "shifted_service_level": after["service_level"],
    }


def penalty_curve(
    estimator: Any, train: tuple[Any, Any], test: tuple[Any, Any], penalties: Sequence[float], **shift: Any
) -> Any:
    """A data frame with one row a penalty: cost and shifted cost on the test rows.

    Args:
        estimator: a `RobustNewsvendor`; cloned for each penalty.
        train, test: (X, y).
        penalties: values of lambda, inf allowed.
        shift: arguments of `evaluate_shift`.
    """
    rows = []
    for penalty in penalties:
        fitted = clone(estimator).set_params(penalty=penalty).fit(*train)
        rows.append({"penalty": float(penalty), **evaluate_shift(fitted, *test, **shift)})
    return require_package("pandas", "penalty_curve", "sklearn").DataFrame(rows)


def plot_penalty_curve(curve: Any, path: str | Path) -> Path:
    """Draw cost and shifted cost against the penalty; inf is the rightmost tick."""
    ordered = curve.sort_values("penalty")
    places = np.arange(len(ordered))
    figure, (panel,) = figure_of((5.2, 3.4))
    shown = ("cost", "shifted_cost"), ("as seen", "contexts shifted")
    for colour, column, label in zip(LINE_COLOURS, *shown, strict=False):
        panel.plot(places, ordered[column], "o-", color=colour, label=label)
    panel.set_xticks(places, ["none" if np.isinf(value) else f"{value:g}" for value in ordered["penalty"]])
    panel.set_xlabel("penalty (small: cautious; none: no robustness)")
    panel.set_ylabel("mean cost of a row")
    panel.grid(alpha=0.25)
    panel.legend(frameon=False)
    return saved(figure, path)
