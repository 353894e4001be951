"""Classes to tasks: equal groups of similar classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from bilevelax.base.errors import require_choice, require_integer

GROUPINGS = ("kmeans", "order", "groups", "random")
RESTARTS = 4
SWEEPS = 50


def group_classes(
    means: np.ndarray,
    tasks: int,
    size: int | None = None,
    method: str = "kmeans",
    seed: int = 0,
    ids: Sequence[str] | None = None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Group classes into tasks of equal size: (tasks, size) class numbers, none twice.

    Args:
        means: class means (classes, d), or features (classes, images, d), which are averaged.
        tasks: number of groups.
        size: classes of each group; default all of them, when ``tasks`` divides their number.
        method: "kmeans" joins classes with near means: Lloyd's iteration whose assignment step is the exact
            least-cost one among those with ``size`` classes in every group (classes left over are the far ones);
            "order" takes consecutive classes in the order of ``ids`` (of WordNet, with wnids);
            "groups" takes each task from one of the given ``groups`` (e.g. alphabets);
            "random" groups at random.
        seed: of the starting centres, or of the random choices. "order" does not use it.
        ids: one string per class, for "order"; default the given order.
        groups: one integer per class, for "groups".
    """
    means = np.asarray(means)
    _require_grouping(means, tasks, size, method, seed)
    n = len(means)
    size = n // tasks if size is None else size
    if method == "groups":
        return _from_groups(groups, n, tasks, size, seed)
    if method in ("order", "random"):
        order = _order(ids, n) if method == "order" else np.random.default_rng(seed).permutation(n)
        return order[: tasks * size].reshape(tasks, size)
    points = means.astype(np.float64) if means.ndim == 2 else means.mean(1, dtype=np.float64)
    runs = [_balanced_kmeans(points, tasks, size, np.random.default_rng((seed, r))) for r in range(RESTARTS)]
    return min(runs, key=lambda run: run[0])[1]


def _require_grouping(means: np.ndarray, tasks: int, size: int | None, method: str, seed: int) -> None:
    require_integer("tasks", "group_classes", tasks, 1)
    require_integer("seed", "group_classes", seed, 0)
    require_choice("method", "group_classes", method, GROUPINGS)
    if means.ndim not in (2, 3):
        raise ValueError(f"`means` of group_classes must be (classes, d) or (classes, images, d). Got {means.shape}.")
    n = len(means)
    if size is None:
        if n % tasks:
            raise ValueError(f"`tasks` of group_classes must divide the {n} classes. Got {tasks}; or give `size`.")
        return
    require_integer("size", "group_classes", size, 1)
    if tasks * size > n:
        raise ValueError(
            f"`tasks` x `size` of group_classes must be at most the {n} classes. Got {tasks} x {size} = {tasks * size}."
        )


def _order(ids: Sequence[str] | None, n: int) -> np.ndarray:
    if ids and len(ids) != n:
        raise ValueError(f"`ids` of group_classes must be {n} strings, one per class. Got {len(ids)}.")
    return np.argsort(np.asarray(ids), kind="stable") if ids else np.arange(n)


def _balanced_kmeans(points: np.ndarray, tasks: int, size: int, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """Within-group sum of squares, and the groups in the order of their first class."""
    centres = _spread_centres(points, tasks, rng)
    groups = np.empty((0, size), int)
    for _ in range(SWEEPS):
        cost = _squared_distances(points, centres)
        chosen, places = linear_sum_assignment(np.repeat(cost, size, 1))  # `size` places in every group
        found = np.sort(chosen[np.argsort(places)].reshape(tasks, size), 1)
        if np.array_equal(found, groups):
            break
        groups, centres = found, points[found].mean(1)
    within = float(((points[groups] - centres[:, None]) ** 2).sum())
    return within, groups[np.argsort(groups[:, 0])]


def _spread_centres(points: np.ndarray, tasks: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++: each next centre is a point drawn with probability proportional to its squared distance."""
    centres = points[[rng.integers(len(points))]]
    while len(centres) < tasks:
        distance = _squared_distances(points, centres).min(1)
        total = distance.sum()
        chance = distance / total if total > 0 else None  # coinciding points: any will do
        centres = np.concatenate([centres, points[[rng.choice(len(points), p=chance)]]])
    return centres


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    squares = (points**2).sum(1)[:, None] + (centres**2).sum(1)[None] - 2 * points @ centres.T
    return np.maximum(squares, 0)


def _from_groups(groups: np.ndarray | None, n: int, tasks: int, size: int, seed: int) -> np.ndarray:
    if groups is None or groups.shape != (n,):
        given = None if groups is None else groups.shape
        raise ValueError(f"`groups` of group_classes must be {n} integers, one per class. Got {given}.")
    families = [members for g in np.unique(groups) if len(members := np.flatnonzero(groups == g)) >= size]
    if len(families) < tasks:
        raise ValueError(
            f"`tasks` of group_classes must be at most {len(families)}, the groups with {size} classes or more. "
            f"Got {tasks}."
        )
    chosen = np.sort(np.random.default_rng(seed).choice(len(families), tasks, replace=False))
    picks = [np.random.default_rng((seed, int(i))).choice(families[i], size, replace=False) for i in chosen]
    return np.sort(np.stack(picks), 1)
