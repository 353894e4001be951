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
    "lam": either(POSITIVE, one_of("learned")),
    "norm": either(POSITIVE, one_of(None)),
    "fit_intercept": one_of(True, False),
    "test_fraction": number(0, 1),
    "K": COUNT,
    "max_iter": either(COUNT, one_of(None)),
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


def plain_labels(values: np.ndarray, what: str) -> dict[str, Any]:
    """Labels as JSON: texts, whole numbers, numbers or truth values."""
    kind = {"u": "i"}.get(values.dtype.kind, values.dtype.kind)
    if kind not in KINDS or (kind == "O" and not all(isinstance(value, str) for value in values)):
        raise ValueError(
            f"A model whose {what} are of {values.dtype} cannot be saved as JSON; make them texts or numbers."
        )
    return {"kind": kind, "values": values.tolist()}


def read_labels(path: Path, where: str, stored: dict[str, Any]) -> np.ndarray:
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
        "classes": plain_labels(model.classes_, "labels"),
        "ids": plain_labels(model.ids_, "groups"),
        "n_features_in_": model.n_features_in_,
        "n_iter_": model.n_iter_,
        "seed_": model.seed_,
        "names": list(getattr(model, "feature_names_in_", [])),
    }
    arrays = {"centre": model.centre_}
    if settings["lam"] == "learned":
        arrays |= {"pooled": model.pooled_, "spread": model.spread_}
        arrays |= {name: np.asarray(value) for name, value in model.learned_.items() if name not in ("W", "scale")}
    return write_folder(folder, type(model).__name__, {"settings": settings, "fitted": fitted}, arrays)


def _arrays(place: Path, settings: dict[str, Any], classes: int, d: int) -> dict[str, np.ndarray]:
    """Those of the model, in the shapes that its settings and columns ask for."""
    W = (classes, d + settings["fit_intercept"])
    if settings["lam"] != "learned":
        return read_arrays(place / "arrays.npz", ("centre",), shapes=lambda headers: {"centre": W})
    shapes = {"centre": W, "pooled": W, "spread": (d,), "penalty": (3,), "prototype": (3,), "absent": ()}

    def expected(headers: Any) -> dict[str, tuple[int, ...]]:
        hidden = headers["A"].shape[-1] if "A" in headers and "B" in headers else 0
        return shapes | ({"A": (d, hidden), "B": (hidden, d)} if hidden else {})

    return read_arrays(place / "arrays.npz", tuple(shapes), ("A", "B"), shapes=expected)


def load_meta(kind: type[MetaClassifier], folder: str | Path) -> MetaClassifier:
    place, document = read_folder(folder, kind.__name__, DECLARED, {})
    settings, fitted, path = document["settings"], document["fitted"], place / "model.json"
    columns = fitted["n_features_in_"]
    names = fitted["names"]
    require(len(names) in (0, columns), path, "fitted.names", f"a list of {columns} texts, or empty", names)
    model = kind(**settings)
    model.classes_ = read_labels(path, "fitted.classes", fitted["classes"])
    model.ids_ = read_labels(path, "fitted.ids", fitted["ids"])
    arrays = _arrays(place, settings, len(model.classes_), columns)
    model.centre_ = arrays.pop("centre")
    if arrays:
        model.pooled_, model.spread_ = arrays.pop("pooled"), arrays.pop("spread")
        model.learned_ = arrays | {"W": model.centre_, "scale": np.zeros_like(arrays["absent"])}
    model.n_features_in_, model.n_iter_, model.seed_ = columns, fitted["n_iter_"], fitted["seed_"]
    if names:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model
