"""How long to train and under which penalty: true costs on rows that were held out decide."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import TimeSeriesSplit

from bilevelax.errors import require_integer
from bilevelax.problem import X
from bilevelax.sklearn._prepare import OWNER, Prepared, Sample
from bilevelax.sklearn._problem import Rows
from bilevelax.sklearn._training import Trained

PATH = (np.inf, 1.0, 0.3, 0.1, 0.03)  # penalties that "cv" tries
EVERY = 50  # steps between two looks at the validation cost
LEAST = (4, 2)  # rows to train on, rows to judge by

Split = tuple[Any, Any]  # rows to train on, rows to judge by: slices or numbers


class Fold(NamedTuple):
    """Rows to train on, as data of the problem, and the rows to judge by."""

    prepared: Prepared
    rows: Rows
    train: Sample
    held: Sample


class Choice(NamedTuple):
    """What the held-out rows decided."""

    penalty: float
    steps: int
    path: dict[float, float]  # mean validation cost of each penalty
    curve: list[float]  # under the first penalty, look by look
    converged: bool


def splits_of(cv: Any, fraction: float, contexts: np.ndarray) -> list[Split]:
    """(train, held) row numbers.

    Args:
        cv: None, the last ``fraction`` of the rows is held out, nothing of a handful of rows; a number
            of folds of `TimeSeriesSplit`; a scikit-learn splitter; or a list of such pairs.
        fraction: of the rows, where cv is None.
        contexts: in the order of time.
    """
    n = len(contexts)
    if not 0 < fraction < 1:
        raise ValueError(f"`validation_fraction` of {OWNER} must lie between 0 and 1. Got {fraction!r}.")
    if cv is None:
        held = round(fraction * n)
        enough = n - held >= LEAST[0] and held >= LEAST[1]
        return [(slice(n - held), slice(n - held, n))] if enough else []  # slices copy nothing
    if not hasattr(cv, "split") and not isinstance(cv, list | tuple):
        require_integer("cv", OWNER, cv, 2)
        cv = TimeSeriesSplit(int(cv))
    splits = [(np.asarray(a), np.asarray(b)) for a, b in (cv.split(contexts) if hasattr(cv, "split") else cv)]
    if not splits or any(len(a) < least for split in splits for a, least in zip(split, LEAST, strict=True)):
        raise ValueError(
            f"`cv` of {OWNER} must make folds of at least {LEAST[0]} rows to train on and {LEAST[1]} to judge by. "
            f"Got {[(len(a), len(b)) for a, b in splits]} from {n} rows; take fewer folds."
        )
    return splits


def warn_of_no_choice(rows: int) -> None:
    """Say that nothing was held out."""
    warnings.warn(
        f"`penalty` of {OWNER} is 'cv', but {rows} rows are too few to hold any out: no robustness (a penalty of inf) "
        "is taken. Give a number, or more rows.",
        stacklevel=4,
    )


def search(
    folds: list[Fold],
    penalties: tuple[float, ...],
    x1: X,
    train: Callable[[Fold, float, int, X, int], Trained],
    most: int,
    early: bool,
) -> Choice:
    """Penalty, and steps if wanted, with the least mean cost over the folds.

    The first penalty sets the number of steps; in each fold, every other one starts at the policy of
    the one before and takes a quarter of them.

    Args:
        folds: all padded to one size, so that they share a program.
        penalties: in this order.
        x1: the first policy.
        train: (fold, penalty, its number, x1, steps) -> what was reached.
        most: steps.
        early: choose the number of steps; else all are taken.
    """
    starts, steps, path = [x1] * len(folds), most, {}
    curve: list[float] = []
    converged = True
    for i, penalty in enumerate(penalties):
        T = most if i == 0 else max(EVERY, steps // 4)
        runs = [train(fold, penalty, i, x, T) for fold, x in zip(folds, starts, strict=True)]
        looks = min(len(run.history) for run in runs)  # one fold may have given up before another
        costs = np.mean([[row["validation"] for row in run.history[:looks]] for run in runs], axis=0)
        best = 1 + int(np.argmin(costs[1:])) if early else looks - 1  # x1 is no result
        starts, path[penalty] = [run.visited[best] for run in runs], float(costs[best])
        if i == 0:
            steps, curve = int(runs[0].history[best]["t"]), costs.tolist()
            converged = not early or all(run.stopped for run in runs)
    return Choice(min(path, key=path.__getitem__), steps, path, curve, converged)
