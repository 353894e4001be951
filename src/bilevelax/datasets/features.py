"""Features of images with their classes, read from one npz file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevelax.base.npz import read_arrays
from bilevelax.datasets.files import locate

TINYIMAGENET = "tinyimagenet_lite0_512.npz"
TINYIMAGENET_SHA256 = "768c3f615a258e8332eda13c2b6d3aef23e0126f7e4dc45075a2d58f178c936c"
TINYIMAGENET_SHAPE = (200, 500, 512)
TINYIMAGENET_FITTED = 450  # the PCA saw the first 450 images of each class


class Features(NamedTuple):
    """Rows of features, each with its class."""

    features: np.ndarray  # (n, d), dtype as stored
    labels: np.ndarray  # (n,) int32, positions in `names`
    names: tuple[str, ...]  # one per class
    source: str  # where the rows come from
    train: np.ndarray | None = None  # (n,) bool: rows that the preprocessing was fitted on; the others are held out
    ids: tuple[str, ...] = ()  # one per class, e.g. WordNet ids; their order is the order "order" of group_classes
    groups: np.ndarray | None = None  # (classes,) int32: the family of each class, e.g. its alphabet

    def class_means(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Mean of every class, (classes, d) float64, over the rows of the mask ``rows`` (default: all)."""
        chosen = np.ones(len(self.labels), bool) if rows is None else rows
        members = [np.flatnonzero(chosen & (self.labels == c)) for c in range(len(self.names))]
        return np.stack([self.features[m].mean(0, dtype=np.float64) for m in members])


def load_features(path: str | Path) -> Features:
    """Features of an npz file, which holds one of

    - ``features`` (n, d) and ``labels`` (n,), integers or strings;
    - ``features`` (classes, images, d);

    and may hold ``names`` and ``wnids`` (one string per class) and ``train``, a mask of the rows (shaped as the
    features without their last axis) that any preprocessing was fitted on. The dtype stays as stored.
    """
    arrays = read_arrays(path, ["features"], ["labels", "names", "wnids", "train"])
    features = arrays["features"]
    if features.ndim not in (2, 3) or 0 in features.shape or not np.issubdtype(features.dtype, np.floating):
        raise ValueError(
            f"`features` of {path} must be floats of shape (n, d) or (classes, images, d), none of them 0. "
            f"Got {features.dtype} of shape {features.shape}."
        )
    if not np.isfinite(features).all():
        raise ValueError(f"`features` of {path} must be finite. Got NaN or infinity; extract them again.")
    labels, found = _labels(arrays, path)
    ids, names = (_strings(arrays, key, len(found), path) for key in ("wnids", "names"))
    _require_members(labels, len(found), path)
    return Features(
        features=features.reshape(-1, features.shape[-1]),
        labels=labels,
        names=names or ids or found,
        source=str(path),
        train=_mask(arrays, path),
        ids=ids,
    )


def load_tinyimagenet() -> Features:
    """Features of the 100,000 training images of tinyImageNet: 200 classes x 500 images x 512, float16.

    EfficientNet-Lite0 pretrained on ImageNet (hence on these classes), PCA to 512 fitted on the first 450 images of
    each class; ``train`` marks those, so the default held-out part is the last 50. Not the ResNet-18 features of
    the paper. ImageNet terms: non-commercial research.
    """
    how = f"set it to that folder, or make your own with `bilevelax features tiny-imagenet-200/train {TINYIMAGENET}`"
    path = locate(TINYIMAGENET, TINYIMAGENET_SHA256, f"{how} and read them with load_features")
    loaded = load_features(path)
    classes, images, d = TINYIMAGENET_SHAPE
    if loaded.features.shape != (classes * images, d):
        raise ValueError(f"`features` of {path} must have shape {TINYIMAGENET_SHAPE}. Got {loaded.features.shape}.")
    source = "tinyImageNet-200 train, EfficientNet-Lite0 features, PCA to 512"
    return loaded._replace(train=np.tile(np.arange(images) < TINYIMAGENET_FITTED, classes), source=source)


def _labels(arrays: dict[str, np.ndarray], path: str | Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels 0..C-1 of the rows, and the C names they stand for."""
    features, labels = arrays["features"], arrays.get("labels")
    if features.ndim == 3:
        if labels is not None:
            raise ValueError(
                f"`labels` of {path} must be absent when features are (classes, images, d): drop one axis."
            )
        classes, images, _ = features.shape
        return np.repeat(np.arange(classes, dtype=np.int32), images), tuple(map(str, range(classes)))
    if labels is None:
        raise ValueError(f"{path} has no array 'labels', which features of shape (n, d) need: save labels=... too.")
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iuU":
        raise ValueError(
            f"`labels` of {path} must be {len(features)} integers or strings, one per row of features. "
            f"Got {labels.dtype} of shape {labels.shape}."
        )
    listed = arrays.get("wnids", arrays.get("names"))
    if listed is not None and labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < listed.size:
        return labels.astype(np.int32), tuple(map(str, range(listed.size)))
    values, positions = np.unique(labels, return_inverse=True)
    return positions.astype(np.int32), tuple(map(str, values))


def _strings(arrays: dict[str, np.ndarray], key: str, classes: int, path: str | Path) -> tuple[str, ...]:
    if key not in arrays:
        return ()
    values = arrays[key]
    if values.shape != (classes,) or values.dtype.kind != "U":
        raise ValueError(
            f"`{key}` of {path} must be {classes} strings, one per class. Got {values.dtype} of shape {values.shape}."
        )
    return tuple(map(str, values))


def _mask(arrays: dict[str, np.ndarray], path: str | Path) -> np.ndarray | None:
    train, shape = arrays.get("train"), arrays["features"].shape[:-1]
    if train is not None and (train.shape != shape or train.dtype != bool):
        raise ValueError(f"`train` of {path} must be booleans of shape {shape}. Got {train.dtype} of {train.shape}.")
    return None if train is None else train.reshape(-1)


def _require_members(labels: np.ndarray, classes: int, path: str | Path) -> None:
    empty = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if len(empty):
        raise ValueError(f"Class {empty[0]} of {path} has no rows: drop its name and renumber the labels.")
