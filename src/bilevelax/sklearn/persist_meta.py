"""A fitted `MetaClassifier` or `PersonalizedModel` as a folder (`model_folder`): the centre, without anyone's rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevelax.base.declared import either, integer, list_of, number, one_of, record, text
from bilevelax.base.npz import read_arrays
from bilevelax.sklearn.model_folder import read_folder, require, write_folder

if TYPE_CHECKING:
    from bilevelax.sklearn.meta import MetaClassifier

COUNT = integer(1, 2**31)
POSITIVE = number(1e-15, 1e15)
SETTINGS = {
    "lam": POSITIVE,
    "norm": either(POSITIVE, one_of(None)),
    "fit_intercept": one_of(True, False),
    "test_fraction": number(0, 1),
    "K": COUNT,
    "max_iter": COUNT,
    "batch_size": COUNT,
    "learning_rate": POSITIVE,
    "random_state": either(integer(0, 2**53), one_of(None)),
    "verbose": either(integer(0, 100), one_of(True, False)),
}
KINDS = {"U": text(), "O": text(), "b": one_of(True, False), "i": integer(-(2**63), 2**63 - 1), "f": number()}
DTYPES: dict[str, Any] = {"U": str, "O": object, "b": bool, "i": np.int64, "f": float}
LABELS = record({"kind": one_of(*KINDS), "values": list_of(either(*KINDS.values()), least=1)})
DECLARED = {
    "settings": record(SETTINGS),
    "fitted": record(
        {
            "classes": LABELS,
            "ids": LABELS,
            "n_features_in_": integer(1, 10**6),
            "n_iter_": COUNT,
            "seed_": integer(0, 2**31),
            "names": list_of(text()),
        }
    ),
}


def _plain(values: np.ndarray, what: str) -> dict[str, Any]:
    """Labels as JSON: texts, whole numbers, numbers or truth values."""
    kind = {"u": "i"}.get(values.dtype.kind, values.dtype.kind)
    if kind not in KINDS or (kind == "O" and not all(isinstance(value, str) for value in values)):
        raise ValueError(
            f"A model whose {what} are of {values.dtype} cannot be saved as JSON; make them texts or numbers."
        )
    return {"kind": kind, "values": values.tolist()}


def _labels(path: Path, where: str, stored: dict[str, Any]) -> np.ndarray:
    for value in stored["values"]:
        KINDS[stored["kind"]](value, f"{where}.values")
    values: np.ndarray = np.array(stored["values"], dtype=DTYPES[stored["kind"]])
    good = len(values) == len(set(stored["values"])) and bool((np.sort(values) == values).all())
    require(good, path, f"{where}.values", "different, in order", stored["values"])
    return values


def save_meta(model: MetaClassifier, folder: str | Path) -> Path:
    settings = model.get_params(deep=False)
    odd = [name for name, value in settings.items() if not isinstance(value, int | float | bool | str | None)]
    if odd:
        raise ValueError(f"A model whose `{odd[0]}` is an object cannot be saved as JSON; give a number instead.")
    fitted = {
        "classes": _plain(model.classes_, "labels"),
        "ids": _plain(model.ids_, "groups"),
        "n_features_in_": model.n_features_in_,
        "n_iter_": model.n_iter_,
        "seed_": model.seed_,
        "names": list(getattr(model, "feature_names_in_", [])),
    }
    return write_folder(
        folder, type(model).__name__, {"settings": settings, "fitted": fitted}, {"centre": model.centre_}
    )


def load_meta(kind: type[MetaClassifier], folder: str | Path) -> MetaClassifier:
    place, document = read_folder(folder, kind.__name__, DECLARED, {})
    settings, fitted, path = document["settings"], document["fitted"], place / "model.json"
    columns = fitted["n_features_in_"]
    names = fitted["names"]
    require(len(names) in (0, columns), path, "fitted.names", f"a list of {columns} texts, or empty", names)
    model = kind(**settings)
    model.classes_ = _labels(path, "fitted.classes", fitted["classes"])
    model.ids_ = _labels(path, "fitted.ids", fitted["ids"])
    shape = (len(model.classes_), columns + settings["fit_intercept"])
    model.centre_ = read_arrays(place / "arrays.npz", ("centre",), shapes=lambda headers: {"centre": shape})["centre"]
    model.n_features_in_, model.n_iter_, model.seed_ = columns, fitted["n_iter_"], fitted["seed_"]
    if names:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model
