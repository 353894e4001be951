"""Policy, conditional and adversary chosen by true costs on later rows (rolling origin), by successive halving.

One program serves all conditionals, penalties and folds. What is tried:

1. the policy with each conditional, all steps, every fold;
2. the winner with each other adversary: a rival takes a quarter of the steps on the last fold, and all on every fold
   only where it is then ahead.

Another policy, and the entropic adversary, would each be a program of its own, and are tried where they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import random

from bilevelax.applications.newsvendor.loss import newsvendor_cost
from bilevelax.applications.newsvendor.orders import placed_orders
from bilevelax.applications.newsvendor.padding import bucket
from bilevelax.applications.newsvendor.prepare import WeightedDemands
from bilevelax.core.problem import X
from bilevelax.sklearn._candidate import Candidate
from bilevelax.sklearn._search import Split
from bilevelax.sklearn._training import Lesson, Trained, Training, lesson_of, train
from bilevelax.sklearn.conditional import is_as_seen

LEAST = 40  # rows to search on
POLICY = "mlp"  # of "auto"
WAYS = ("forest", "dirac")  # conditionals that "auto" tries
SHARES = (0.25, 0.5, 1.0)  # of the steps, among which those of a rule on rows as they are may end
QUARTER, AHEAD = 0.25, 0.995  # of the steps; share of the leader's cost that a rival has to reach by then

How = Callable[[Candidate], Training]


class Tried(NamedTuple):
    """A candidate on the folds, after so many steps."""

    candidate: Candidate
    steps: int
    cost: float  # mean over folds
    curve: list[float]  # look by look
    last: list[float]  # the same of the last fold
    ends: list[X]  # of each fold


def rolling_splits(rows: int, fraction: float) -> list[Split]:
    """Two origins: the last two blocks of that share of the rows, each judged by what came before it."""
    held = round(fraction * rows)
    starts = [rows - 2 * held, rows - held] if rows - 2 * held >= held else [rows - held]
    return [(slice(start), slice(start, start + held)) for start in starts]


class Search:
    """Candidates trained and judged; conditionals of the folds are fitted once.

    Args:
        how_of: training of a candidate.
        sample: rows in the order of time.
        splits: (train, held) rows.
        steps: of every candidate.
        all_looks: the number of steps may be that of any look, not only those of `SHARES`.
    """

    def __init__(
        self, how_of: How, sample: WeightedDemands, splits: list[Split], steps: int, all_looks: bool = False
    ) -> None:
        self.how_of, self.sample, self.steps, self.all_looks = how_of, sample, steps, all_looks
        self.folds = [(sample.take(train), sample.take(held)) for train, held in splits]
        self.least = bucket(len(sample.y))  # one program for all folds
        self.lessons: dict[Any, Lesson] = {}
        self.tried: list[Tried] = []

    def lesson(self, candidate: Candidate, fold: int) -> Lesson:
        how = self.how_of(candidate)
        place = (repr(candidate.conditional), how.together, fold)
        if place not in self.lessons:
            self.lessons[place] = lesson_of(how, self.least, *self.folds[fold])
        return self.lessons[place]

    def run(self, candidate: Candidate, fold: int, steps: int) -> Trained:
        how = self.how_of(candidate)
        key = random.fold_in(how.key, fold)
        return train(how, self.lesson(candidate, fold), candidate.penalty, how.x1, key, steps)

    def judge(self, candidate: Candidate) -> Tried:
        """All steps on every fold; on rows as they are, the number of steps is chosen, too."""
        runs = [self.run(candidate, fold, self.steps) for fold in range(len(self.folds))]
        curve = np.mean([[row["validation"] for row in run.history] for run in runs], axis=0)
        times = np.array([row["t"] for row in runs[0].history])
        shares = SHARES if is_as_seen(candidate.conditional) else (1.0,)
        looks = [max(1, int(np.argmin(np.abs(times - share * self.steps)))) for share in shares]
        looks = list(range(1, len(times))) if self.all_looks else looks
        best = min(looks, key=curve.__getitem__)
        ends = [run.visited[best] for run in runs]
        last = [row["validation"] for row in runs[-1].history]
        self.tried.append(Tried(candidate, int(times[best]), float(curve[best]), curve.tolist(), last, ends))
        return self.tried[-1]

    def is_ahead(self, candidate: Candidate, leader: Tried) -> bool:
        """After a quarter of the steps on the last fold, by more than noise."""
        history = self.run(candidate, len(self.folds) - 1, max(1, round(QUARTER * self.steps))).history
        return history[-1]["validation"] < AHEAD * leader.last[min(len(history), len(leader.last)) - 1]

    def choose(
        self, policy: Any, conditionals: list[Any], adversaries: list[tuple[float, Any]], whole_path: bool = False
    ) -> Tried:
        """The one with the least mean cost on rows held out; ``whole_path``: no adversary is left out early."""
        first, *others = adversaries
        best = min((self.judge(Candidate(policy, each, *first)) for each in conditionals), key=cost_of)
        rivals = [best.candidate._replace(penalty=price, noise=noise) for price, noise in others]
        return self.best_of(best, rivals, everyone=whole_path)

    def best_of(self, leader: Tried, rivals: list[Candidate], everyone: bool = False) -> Tried:
        ahead = [rival for rival in rivals if everyone or self.is_ahead(rival, leader)]
        return min([leader, *map(self.judge, ahead)], key=cost_of)

    def orders(self, tried: Tried) -> list[np.ndarray]:
        """Orders for the held-out rows of each fold."""
        placed = []
        for fold, x in enumerate(tried.ends):
            how, prepared = self.how_of(tried.candidate), self.lesson(tried.candidate, fold).prepared
            placed.append(placed_orders(how.policy, how.static, x, prepared, self.folds[fold][1].X))
        return placed

    def forest_orders(self, fold: int) -> np.ndarray:
        """Those of the baseline of that name for the held-out rows: its forest is fitted already."""
        held = self.folds[fold][1]
        forest = self.lesson(Candidate("mlp", "forest", np.inf), fold).prepared.conditional
        return forest.quantiles_of_rows(held.X, held.backlog / (held.holding + held.backlog))

    def costs(self, placed: list[np.ndarray]) -> list[np.ndarray]:
        """Of every held-out row, for each fold."""
        pairs = zip(placed, self.folds, strict=True)
        return [newsvendor_cost(w, held.y, held.holding, held.backlog).sum(1) for w, (_, held) in pairs]


def cost_of(tried: Tried) -> float:
    return tried.cost
