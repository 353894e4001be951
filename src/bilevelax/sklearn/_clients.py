"""Rows of tasks or clients as scikit-learn gives them: checked, sorted by client, and kept as plain arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from bilevelax.applications._softmax import Labelled, Tasks
from bilevelax.applications.personalized_fl import ClientRows, held_out, labelled

Stored = dict[str, dict[str, np.ndarray]]  # the parts of `Tasks` by name, which every way of saving understands


def labels_of(y: np.ndarray, owner: str) -> tuple[np.ndarray, np.ndarray]:
    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"{owner} needs at least 2 classes; y holds 1 class only, {classes[0]!r}.")
    return classes, labels


def require_short(X: np.ndarray, owner: str) -> None:
    """Rows whose squared length the default precision can hold: else all that follows is infinite or zero."""
    lengths = np.sqrt(np.sum((X / (np.abs(X).max() or 1.0)) ** 2, axis=1)) * np.abs(X).max()
    most = float(np.sqrt(jnp.finfo(jnp.result_type(float)).max)) / 1e3
    if lengths.max() > most:
        row = int(np.argmax(lengths))
        raise ValueError(
            f"Rows of X of {owner} must be so short that their squares are numbers, at most {most:.3g}. Got a length "
            f"of {lengths[row]:.3g} in row {row + 1}; scale the columns."
        )


def clients_of(
    features: np.ndarray, labels: np.ndarray, groups: Any, owner: str
) -> tuple[np.ndarray, list[ClientRows]]:
    """(names of the clients, their rows in the order given)."""
    groups = np.zeros(len(features), int) if groups is None else np.asarray(groups)
    if groups.shape != (len(features),):
        raise ValueError(
            f"`groups` of {owner} must name the task of each of the {len(features)} rows. Got {groups.shape}."
        )
    ids, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        alone = ids[np.argmin(counts)]
        raise ValueError(f"`groups` of {owner} must give each task at least 2 rows. Got one row for {alone}.")
    parts = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    return ids, [(features[at], labels[at]) for at in parts]


def stored(clients: list[ClientRows], fraction: float | None) -> Stored:
    """Training and test parts; both are all rows without fraction."""
    tasks = Tasks(*[labelled(clients, None)] * 2) if fraction is None else held_out(clients, fraction, None)
    plain = lambda part: {name: np.asarray(a) for name, a in part._asdict().items() if a is not None}
    train = plain(tasks.train)
    return {"train": train, "test": train if tasks.test is tasks.train else plain(tasks.test)}


def tasks_of(parts: Stored) -> Tasks:
    """The data of a problem again; equal parts are one, in memory too."""
    made = {id(part): Labelled(**{name: jnp.asarray(a) for name, a in part.items()}) for part in parts.values()}
    return Tasks(*(made[id(part)] for part in parts.values()))


def rows_of(parts: Stored, i: int) -> ClientRows:
    """The training rows of client number i."""
    train = Labelled(**parts["train"])  # type: ignore[arg-type]
    return train.rows(i, np.arange(int(train.counts[i])))  # type: ignore[return-value]
