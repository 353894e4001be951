"""A newsvendor never ships a rule that lost: baselines judged on the same held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilevelax.sklearn._candidate import RIVALS
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


def better_baseline(
    model: Any, search: Search, costs: np.ndarray
) -> tuple[str | None, list[np.ndarray], dict[str, float]]:
    """(the baseline that is clearly better than a rule with these costs, or None; its orders; mean cost of each)."""
    means, placed, ahead = {}, {}, {}
    for name, rival in rivals(model, len(search.sample.y)).items():
        outputs = search.sample.y.shape[1]
        made = [rival.fit(past.X, past.y).predict(held.X).reshape(-1, outputs) for past, held in search.folds]
        theirs = search.costs(made)
        gain = costs - theirs
        error = gain.std(ddof=1) / len(gain) ** 0.5
        means[name], placed[name] = float(theirs.mean()), made
        if gain.mean() > max(CLEARLY * error, WORTH * theirs.mean()):
            ahead[name] = means[name]
    best = min(ahead, key=ahead.__getitem__, default=None)
    return best, placed[best] if best else [], means
