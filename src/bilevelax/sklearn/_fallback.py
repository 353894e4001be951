"""A newsvendor never ships a rule that lost: baselines judged on the same held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.sklearn._candidate import BLEND, RIVALS, SLOW
from bilevelax.sklearn._choosing import Search

FEW_ROWS = 10_000  # above it, boosting and linear programs would take minutes
RULE = "rule"
NEAR, WORTH = 0.5, 0.01  # standard errors of the mean difference to the cheapest; or this share of its cost
BLOCKS = 6  # of a fold: days in a row are not independent, so that errors are those of means over blocks


def rivals(model: Any, rows: int) -> dict[str, Any]:
    """Baselines with the model's costs, by name."""
    from bilevelax.sklearn.baselines import baselines  # that part stands on this one

    slow = () if rows <= FEW_ROWS else SLOW
    made = baselines(model.holding_cost, model.backlog_cost, random_state=model.seed_)
    return {name: made[name] for name in RIVALS if name not in slow}


def orders_of(name: str, rival: Any, search: Search, fold: int) -> np.ndarray:
    """For the held-out rows of a fold."""
    if name == "forest":
        return search.forest_orders(fold)
    past, held = search.folds[fold]
    return rival.fit(past.X, past.y).predict(held.X).reshape(held.y.shape)


def standard_error(gains: list[np.ndarray]) -> float:
    """Of the mean of differences, given fold by fold in the order of time."""
    means = [part.mean() for gain in gains for part in np.array_split(gain, min(BLOCKS, len(gain)))]
    return float(np.std(means, ddof=1) / len(means) ** 0.5)


def preferred(costs: dict[str, list[np.ndarray]]) -> str:
    """The first that is near the cheapest, from costs of the held-out rows of each fold.

    First the rule, or the mean of its orders and the forest's where that is cheaper: costs are convex, so that the
    mean never costs more than the two do on average. Then the simplest: what days held out cannot tell apart, a
    change of level or an outage after them will.
    """
    means = {name: float(np.concatenate(each).mean()) for name, each in costs.items()}
    best = min(means, key=means.__getitem__)
    own = [name for name in (RULE, BLEND) if name in costs]
    for name in [*sorted(own, key=means.__getitem__)[:1], *(name for name in RIVALS if name in costs)]:
        behind = [mine - least for mine, least in zip(costs[name], costs[best], strict=True)]
        if means[name] - means[best] <= max(NEAR * standard_error(behind), WORTH * means[best]):
            return name
    return best


def better_baseline(
    model: Any, search: Search, placed: list[np.ndarray]
) -> tuple[str | None, list[np.ndarray], dict[str, float]]:
    """(what to order by instead of a rule with these orders, or None; its orders; mean cost of each that was asked)."""
    folds = range(len(search.folds))
    asked = rivals(model, len(search.sample.y))
    theirs = {name: [orders_of(name, rival, search, fold) for fold in folds] for name, rival in asked.items()}
    theirs[BLEND] = [(forest + rule) / 2 for forest, rule in zip(theirs["forest"], placed, strict=True)]
    costs = {name: search.costs(orders) for name, orders in [*theirs.items(), (RULE, placed)]}
    means = {name: float(np.concatenate(costs[name]).mean()) for name in theirs}
    best = preferred(costs)
    return (None, [], means) if best == RULE else (best, theirs[best], means)
