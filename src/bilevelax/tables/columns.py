"""Which columns the adversary may move, and how far a unit is in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MANY_VALUES = 12  # a column with more different values than months in a year is taken for a measurement
OWNER = "RobustNewsvendor"


def names_of(X: Any) -> list[str] | None:
    """Column names of a data frame."""
    columns = getattr(X, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def dtypes_of(X: Any) -> list[Any] | None:
    """Column dtypes of a data frame."""
    dtypes = getattr(X, "dtypes", None)
    return None if dtypes is None or getattr(X, "columns", None) is None else list(dtypes)


def move_scales(perturb: Any, values: np.ndarray, names: list[str] | None, dtypes: list[Any] | None) -> np.ndarray:
    """A factor for each column: 0 where it stays, 1 where a unit of movement is its standard deviation.

    Args:
        perturb: "auto" (columns with more than 12 different values), "all", "none", a dtype such as
            "float" (data frames), a list of names or numbers, a mask, an array of factors, or a dict
            {name or number: factor}.
        values: the training contexts.
        names, dtypes: of the data frame, if it was one.
    """
    d = values.shape[1]
    if isinstance(perturb, str):
        return _by_word(perturb, values, dtypes)
    if isinstance(perturb, Mapping):
        scales = np.zeros(d)
        for name, factor in perturb.items():
            scales[_position(name, d, names)] = float(factor)
        return _checked(scales)
    items = np.asarray(perturb)
    if items.dtype == bool or items.dtype.kind == "f":
        if items.shape != (d,):
            raise ValueError(
                f"`perturb` of {OWNER} must have one entry for each of the {d} columns. Got shape {items.shape}."
            )
        return _checked(items.astype(float))
    scales = np.zeros(d)
    for item in items.ravel().tolist():
        scales[_position(item, d, names)] = 1.0
    return scales


def _by_word(word: str, values: np.ndarray, dtypes: list[Any] | None) -> np.ndarray:
    d = values.shape[1]
    if word == "auto":
        return np.array([float(len(np.unique(values[:, j])) > MANY_VALUES) for j in range(d)])
    if word in ("all", "none"):
        return np.full(d, float(word == "all"))
    try:
        wanted = np.dtype(word)
    except TypeError:
        raise ValueError(
            f"`perturb` of {OWNER} must be 'auto', 'all', 'none', a dtype, names, a mask or factors. Got {word!r}; "
            "a single column is a list of one name."
        ) from None
    if dtypes is None:
        raise ValueError(f"`perturb` of {OWNER} may be a dtype only where X is a data frame. Got {word!r}.")
    return np.array([float(np.issubdtype(_numpy_dtype(dtype), wanted.type)) for dtype in dtypes])


def _numpy_dtype(dtype: Any) -> Any:
    try:
        return np.dtype(getattr(dtype, "numpy_dtype", dtype))
    except TypeError:
        return np.dtype(object)


def _position(item: Any, d: int, names: list[str] | None) -> int:
    if isinstance(item, str):
        if names is None or item not in names:
            known = "X had no column names" if names is None else f"the columns are {', '.join(names)}"
            raise ValueError(f"`perturb` of {OWNER} names the column {item!r}, which X does not have; {known}.")
        return names.index(item)
    if not -d <= int(item) < d:
        raise ValueError(f"`perturb` of {OWNER} names column number {item}, but X has {d} columns.")
    return int(item)


def _checked(scales: np.ndarray) -> np.ndarray:
    if not np.all(np.isfinite(scales)) or np.any(scales < 0):
        raise ValueError(f"`perturb` of {OWNER} must hold factors >= 0. Got {scales.tolist()}.")
    return scales
