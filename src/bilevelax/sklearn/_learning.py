"""What `RobustNewsvendor.fit` does with checked rows: choose, train on all of them, calibrate, look at baselines."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.applications.newsvendor.prepare import WeightedDemands
from bilevelax.sklearn._calibration import Calibration, calibrate, service_target
from bilevelax.sklearn._candidate import SEARCHED, Candidate
from bilevelax.sklearn._choosing import LEAST, POLICY, WAYS, Search, Tried, rolling_splits
from bilevelax.sklearn._fallback import better_baseline
from bilevelax.sklearn._search import Choice, Learned, finish, learn, splits_of
from bilevelax.sklearn._settings import adversaries, steps_for, training_of

FEW_ROWS_PENALTY = 0.3  # where there are too few rows to choose


class Lessons(NamedTuple):
    """A newsvendor that has learned."""

    candidate: Candidate
    steps: int  # of a whole schedule
    learned: Learned
    tried: list[Tried]
    calibration: Calibration
    fallback: str | None  # the baseline that is used instead
    rivals: dict[str, float]  # validation cost of each baseline


def learn_newsvendor(model: Any, sample: WeightedDemands, plain: bool) -> Lessons:
    """All of it; ``plain``: every row counts alike and costs the same, as baselines need it."""
    steps = steps_for(model.max_iter, len(sample.y))
    if "auto" in [each for each in (model.policy, model.conditional, model.penalty) if isinstance(each, str)]:
        return _searched(model, sample, plain, steps)
    penalty, noise = adversaries(model)[0]
    candidate = Candidate(model.policy, model.conditional, penalty, noise)
    patience = model.patience if model.early_stopping else 0
    splits = splits_of(model.cv, model.validation_fraction, sample.X)
    asked = penalty if model.ambiguity is None else model.penalty
    learned = learn(training_of(model, candidate, steps), sample, asked, splits, patience)
    candidate = candidate._replace(penalty=learned.choice.penalty)
    return Lessons(candidate, steps, learned, [], uncalibrated(sample), None, {})


def uncalibrated(sample: WeightedDemands) -> Calibration:
    target, nothing = service_target(sample), np.full(sample.y.shape[1], np.nan)
    return Calibration(np.zeros(len(target)), target, nothing, nothing)


def _searched(model: Any, sample: WeightedDemands, plain: bool, steps: int) -> Lessons:
    policy = POLICY if _is_auto(model.policy) else model.policy
    conditionals = list(WAYS) if _is_auto(model.conditional) else [model.conditional]
    given = not isinstance(model.penalty, str)
    few = sample if model.cv is not None else sample.thinned(SEARCHED)
    splits = splits_of(model.cv, model.validation_fraction, few.X)
    if model.cv is None:
        splits = rolling_splits(len(few.y), model.validation_fraction) if len(few.y) >= LEAST else []
    if not splits:
        penalty, noise = adversaries(model)[0]
        penalty = min(penalty, FEW_ROWS_PENALTY) if not given and model.move_scales_.any() else penalty
        candidate = Candidate(policy, conditionals[0], penalty, noise)
        learned = finish(training_of(model, candidate, steps), sample, Choice(penalty, steps, {}, [], True), False)
        return Lessons(candidate, steps, learned, [], uncalibrated(sample), None, {})
    search = Search(lambda each: training_of(model, each, steps), few, splits, steps, model.early_stopping)
    best = search.choose(policy, conditionals, adversaries(model), model.penalty == "cv")
    placed, name = search.orders(best), None
    rivals: dict[str, float] = {}
    if plain and model.fallback:
        name, theirs, rivals = better_baseline(model, search, placed)
        placed = theirs if name else placed
    calibration = uncalibrated(sample)
    if model.calibrate:
        calibration = calibrate(placed, [held for _, held in search.folds], service_target(sample))
    path = {each.candidate.penalty: each.cost for each in search.tried if _is_same_but_penalty(each, best)}
    choice = Choice(best.candidate.penalty, best.steps, path, best.curve, True)
    learned = finish(training_of(model, best.candidate, steps), sample, choice, given)
    return Lessons(best.candidate, steps, learned, search.tried, calibration, name, rivals)


def _is_auto(setting: Any) -> bool:
    return isinstance(setting, str) and setting == "auto"


def _is_same_but_penalty(one: Tried, other: Tried) -> bool:
    return one.candidate._replace(penalty=0.0) == other.candidate._replace(penalty=0.0)
