"""A policy learned: true costs on rows that were held out choose penalty and steps, then it is trained on all rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import random

from bilevelax.applications.newsvendor.padding import bucket
from bilevelax.applications.newsvendor.prepare import WeightedDemands
from bilevelax.applications.newsvendor.rows import Rows
from bilevelax.applications.newsvendor.weights import Conditional
from bilevelax.base.errors import require_integer
from bilevelax.core.problem import X
from bilevelax.sklearn._curvature import least_penalty, warn_of_curvature
from bilevelax.sklearn._settings import PATH
from bilevelax.sklearn._training import OWNER, Lesson, Trained, Training, lesson_of, train

FOLD = (4, 2)  # rows to train on, rows to judge by
FEW_DEMANDS = 5.0  # an effective sample size below this is worth a warning

Split = tuple[Any, Any]  # rows to train on, rows to judge by: slices or numbers


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
        enough = n - held >= FOLD[0] and held >= FOLD[1]
        return [(slice(n - held), slice(n - held, n))] if enough else []  # slices copy nothing
    if not hasattr(cv, "split") and not isinstance(cv, list | tuple):
        require_integer("cv", OWNER, cv, 2)
        from sklearn.model_selection import TimeSeriesSplit

        cv = TimeSeriesSplit(int(cv))
    splits = [(np.asarray(a), np.asarray(b)) for a, b in (cv.split(contexts) if hasattr(cv, "split") else cv)]
    small = [split for split in splits if any(len(a) < least for a, least in zip(split, FOLD, strict=True))]
    if small or not splits:
        sizes = f"Got one of {len(small[0][0])} and {len(small[0][1])}" if small else "Got none"
        raise ValueError(
            f"`cv` of {OWNER} must make folds of at least {FOLD[0]} rows to train on and {FOLD[1]} to judge by. "
            f"{sizes} from {n} rows; take fewer folds."
        )
    return splits


def warn_of_no_choice(rows: int) -> None:
    """Say that nothing was held out."""
    warnings.warn(
        f"`penalty` of {OWNER} is 'cv', but {rows} rows are too few to hold any out: no robustness (a penalty of inf) "
        "is taken. Give a number, or more rows.",
        stacklevel=4,
    )


def warn_of_few(conditional: Any, X: np.ndarray) -> None:
    """Warn where a typical context rests on very few demands."""
    if isinstance(conditional, Conditional) and not conditional.votes_for_itself:
        size = float(np.median(conditional.effective_sample_size(X[:: max(1, len(X) // 200)])))
        if size < FEW_DEMANDS:
            warnings.warn(
                f"`conditional` of {OWNER} rests on about {size:.1f} demands a context, which is few: expect noise "
                "or give more rows or a smoother conditional.",
                stacklevel=4,
            )


def search(
    folds: list[Any],
    penalties: tuple[float, ...],
    x1: X,
    train: Callable[[Any, float, int, X, int], Trained],
    most: int,
    early: bool,
) -> Choice:
    """Penalty, and steps if wanted, with the least mean cost over the folds (lessons).

    The first penalty sets the number of steps; every other one starts where it started, and takes as many.

    Args:
        folds: all padded to one size, so that they share a program.
        penalties: in this order.
        x1: the first policy.
        train: (fold, penalty, its number, x1, steps) -> what was reached.
        most: steps.
        early: choose the number of steps; else all are taken.
    """
    steps, path = most, {}
    curve: list[float] = []
    converged = True
    for i, penalty in enumerate(penalties):
        runs = [train(fold, penalty, i, x1, steps) for fold in folds]
        looks = min(len(run.history) for run in runs)  # one fold may have given up before another
        costs = np.mean([[row["validation"] for row in run.history[:looks]] for run in runs], axis=0)
        best = 1 + int(np.argmin(costs[1:])) if early else looks - 1  # x1 is no result
        path[penalty] = float(costs[best])
        if i == 0:
            steps, curve = int(runs[0].history[best]["t"]), costs.tolist()
            converged = not early or all(run.stopped for run in runs)
    return Choice(min(path, key=path.__getitem__), steps, path, curve, converged)


class Learned(NamedTuple):
    """A policy trained on all rows, and how it came about."""

    choice: Choice
    lesson: Lesson
    rows: Rows  # under the chosen penalty
    done: Trained


def learn(how: Training, sample: WeightedDemands, penalty: Any, splits: list[Split], patience: int) -> Learned:
    """Choose, then train on all rows.

    Args:
        how: to train.
        sample: all rows.
        penalty: a number, or "cv" to choose one of `PATH` on the rows held out.
        splits: (train, held) row numbers.
        patience: looks without progress after which a fold stops, where the number of steps is chosen too; else 0.
    """
    given = not isinstance(penalty, str)
    penalties = (float(penalty),) if given else PATH
    least = bucket(min(len(sample.y), how.contexts))  # one program for folds and all rows
    choice = Choice(penalties[0], how.max_iter, {}, [], True)
    if not splits and not given:
        warn_of_no_choice(len(sample.y))
    if splits and (patience or not given):
        folds = [lesson_of(how, least, sample.take(train), sample.take(held)) for train, held in splits]
        choice = search(folds, penalties, how.x1, trial(how, patience), how.max_iter, patience > 0)
    return finish(how, sample, choice, given)


def finish(how: Training, sample: WeightedDemands, choice: Choice, given: bool) -> Learned:
    """Train on all rows as chosen; ``given``: the penalty was, so that its being too small is worth a warning."""
    lesson = lesson_of(how, bucket(min(len(sample.y), how.contexts)), sample)
    warn_of_few(lesson.prepared.conditional, sample.X)
    done = train(how, lesson, choice.penalty, how.x1, how.key, choice.steps)
    rows = how.under(lesson.rows, choice.penalty)
    if given and np.isfinite(choice.penalty) and how.noise is None:
        found = least_penalty(how.losses, rows._asdict(), how.scales, choice.penalty, done.x, how.key)
        warn_of_curvature(found, choice.penalty)
    return Learned(choice, lesson, rows, done)


def trial(how: Training, patience: int) -> Callable[[Lesson, float, int, X, int], Trained]:
    """Training on a fold under the path's penalty of that number."""
    return lambda fold, penalty, number, x1, T: train(
        how, fold, penalty, x1, random.fold_in(how.key, number), T, patience
    )
