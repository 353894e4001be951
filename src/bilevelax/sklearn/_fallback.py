"""A newsvendor never ships a rule that lost: baselines judged on the same held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.sklearn._candidate import BLEND, RIVALS
from bilevelax.sklearn._choosing import Search

FEW_ROWS = 10_000  # above it, only the forest is asked: boosting and linear programs would take minutes
CLEARLY = 1.645  # standard errors of the mean difference
WORTH = 0.01  # and this share of the cost


def rivals(model: Any, rows: int) -> dict[str, Any]:
    """Baselines with the model's costs, by name."""
    from bilevelax.sklearn.baselines import baselines  # that part stands on this one

    asked = RIVALS if rows <= FEW_ROWS else RIVALS[:1]
    made = baselines(model.holding_cost, model.backlog_cost, random_state=model.seed_)
    return {name: made[name] for name in asked}


def orders_of(name: str, rival: Any, search: Search, fold: int) -> np.ndarray:
    """For the held-out rows of a fold."""
    if name == "forest":
        return search.forest_orders(fold)
    past, held = search.folds[fold]
    return rival.fit(past.X, past.y).predict(held.X).reshape(held.y.shape)


def better_baseline(
    model: Any, search: Search, placed: list[np.ndarray]
) -> tuple[str | None, list[np.ndarray], dict[str, float]]:
    """(what is clearly better than a rule with these orders, or None; its orders; mean cost of each that was asked).

    The mean of the forest's orders and the rule's is taken already where it is not dearer than the rule: costs are
    convex, so that it never costs more than the two do on average, and often less than either.
    """
    folds = range(len(search.folds))
    asked = rivals(model, len(search.sample.y))
    theirs = {name: [orders_of(name, rival, search, fold) for fold in folds] for name, rival in asked.items()}
    theirs[BLEND] = [(forest + rule) / 2 for forest, rule in zip(theirs["forest"], placed, strict=True)]
    costs = search.costs(placed)
    means, ahead = {}, {}
    for name, orders in theirs.items():
        paid = search.costs(orders)
        gain, means[name] = costs - paid, float(paid.mean())
        clearly = max(CLEARLY * gain.std(ddof=1) / len(gain) ** 0.5, WORTH * means[name])
        if gain.mean() > (0.0 if name == BLEND else clearly):
            ahead[name] = means[name]
    best = min(ahead, key=ahead.__getitem__, default=None)
    return best, theirs[best] if best else [], means
