"""Features to the arrays of a meta-learning problem: a split in every class, classes grouped into tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevelax.base.errors import require_integer
from bilevelax.datasets.features import Features
from bilevelax.datasets.grouping import group_classes

HELD_OUT = 0.1


class TaskArrays(NamedTuple):
    """Features of tasks, (tasks, classes, images, d), and the class numbers (tasks, classes) they belong to."""

    train: np.ndarray
    test: np.ndarray
    classes: np.ndarray


def split(labels: np.ndarray, held_out: float = HELD_OUT, seed: int | None = 0) -> np.ndarray:
    """Mask of the training rows: in every class, the share ``held_out`` (to the nearest row, at least one) is False.

    Args:
        labels: class numbers 0..C-1 of the rows.
        held_out: share of every class that is kept for testing.
        seed: of the choice; a class's choice depends on the seed and the class number only.
            None holds out the last rows of every class.
    """
    labels = np.asarray(labels)
    require_split("split", held_out, seed)
    train = np.ones(len(labels), bool)
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        out = max(1, int(held_out * len(rows) + 0.5))
        if out >= len(rows):
            raise ValueError(
                f"`held_out` of split must leave every class a training row. Got {held_out} with class {c} of "
                f"{len(rows)} rows: add rows or drop the class."
            )
        order = rows if seed is None else np.random.default_rng((seed, int(c))).permutation(rows)
        train[order[-out:]] = False
    return train


def require_split(owner: str, held_out: float, seed: int | None) -> None:
    if not 0 < held_out < 1:
        raise ValueError(f"`held_out` of {owner} must be between 0 and 1, both excluded. Got {held_out!r}.")
    if seed is not None:
        require_integer("seed", owner, seed, 0)


def meta_learning_arrays(
    dataset: Features,
    tasks: int = 20,
    classes: int = 10,
    method: str = "kmeans",
    seed: int = 0,
    held_out: float | None = None,
    images: int | None = None,
    dtype: Any = np.float32,
) -> TaskArrays:
    """Train and test features (tasks, classes, images, d); classes are grouped by the means of their training rows.

    Args:
        dataset: as the loaders return it.
        tasks: number of tasks.
        classes: classes of each task.
        method: how classes are grouped, see `group_classes`.
        seed: of the grouping and of the split.
        held_out: share of every class for testing, chosen by ``seed``. None: the rows that the dataset's own
            preprocessing did not see, where it says which, else one tenth.
        images: training images of each class, the first ones; default those of the smallest class, as long as that
            leaves out less than a tenth of any other.
        dtype: of the arrays; the stored features may be float16.
    """
    if held_out is None and dataset.train is not None:
        train = dataset.train
    else:
        train = split(dataset.labels, HELD_OUT if held_out is None else held_out, seed)
    means = dataset.class_means(train)
    chosen = group_classes(means, tasks, classes, method, seed, dataset.ids, dataset.groups)
    inside = _rows(dataset, train, chosen, images)
    outside = _rows(dataset, ~train, chosen, None if images is None else 0)
    return TaskArrays(dataset.features[inside].astype(dtype), dataset.features[outside].astype(dtype), chosen)


def _rows(dataset: Features, part: np.ndarray, chosen: np.ndarray, images: int | None) -> np.ndarray:
    """Row numbers (tasks, classes, images): ``images`` of each class, 0 = as many as all have, None = nearly all."""
    rows = [np.flatnonzero(part & (dataset.labels == c)) for c in chosen.ravel()]
    least, most = min(map(len, rows)), max(map(len, rows))
    if least == 0:
        raise ValueError(f"Every class of {dataset.source} must have training and held-out rows. Got one without.")
    if images is None and least < 0.9 * most and most - least > 1:
        raise ValueError(
            f"Classes of {dataset.source} have between {least} and {most} images: give `images` to "
            f"meta_learning_arrays, at most {least}, to take equally many of each, or drop the small classes."
        )
    if images is not None and images > least:
        raise ValueError(f"`images` of meta_learning_arrays must be at most {least}, the smallest class. Got {images}.")
    count = images or least
    return np.stack([r[:count] for r in rows]).reshape(*chosen.shape, count)
