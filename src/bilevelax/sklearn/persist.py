"""A fitted newsvendor as a folder: model.json and arrays.npz. Nothing is pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax._version import __version__
from bilevelax.datasets.files import read_arrays, write_arrays
from bilevelax.sklearn._prepare import Prepared, Scaling
from bilevelax.sklearn.newsvendor import RobustNewsvendor

FORMAT = 1
PLAIN = (str, int, float, bool, type(None))


def save_newsvendor(model: RobustNewsvendor, folder: str | Path, extra: dict[str, Any], **arrays: np.ndarray) -> Path:
    """Write what `predict` needs, ``extra`` (plain JSON) and further arrays."""
    settings = {k: value for k, value in model.get_params(deep=False).items() if k not in ("perturb", "cv")}
    odd = [name for name, value in settings.items() if not isinstance(value, PLAIN)]
    if odd:
        raise ValueError(f"A model whose `{odd[0]}` is an object cannot be saved as JSON; use pickle or skops for it.")
    if isinstance(settings["penalty"], float) and np.isinf(settings["penalty"]):
        settings["penalty"] = "inf"
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "format": FORMAT,
        "version": __version__,
        "settings": settings,
        "fitted": {
            "penalty_": str(model.penalty_),
            "n_iter_": model.n_iter_,
            "seed_": model.seed_,
            "n_outputs_": model.n_outputs_,
            "n_features_in_": model.n_features_in_,
            "nonnegative_": model.nonnegative_,
            "flat": model._flat,
            "unit": model.prepared_.unit,
            "loss_curve_": model.loss_curve_,
            "policy_arrays": len(model._arrays),
            "names": list(getattr(model, "feature_names_in_", [])),
        },
        **extra,
    }
    stored = {f"policy_{i}": a for i, a in enumerate(model._arrays)} | arrays
    stored["move_scales"] = model.move_scales_
    for name in ("contexts", "demands"):
        stored |= {f"{name}_{k}": a for k, a in getattr(model.prepared_, name)._asdict().items()}
    write_arrays(folder / "arrays.npz", stored)
    (folder / "model.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return folder


def load_newsvendor(folder: str | Path) -> tuple[RobustNewsvendor, dict[str, Any]]:
    """(a model that can `predict`, the whole record). The conditional distribution is not stored."""
    folder = Path(folder).expanduser()
    path = folder / "model.json"
    if not path.is_file():
        raise ValueError(f"{folder} is no saved model: it has no model.json; name the folder that holds one.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): train the model again.") from None
    if record.get("format") != FORMAT:
        raise ValueError(
            f"{folder} has format {record.get('format')!r}, written by bilevelax {record.get('version')}; "
            f"this is bilevelax {__version__}, which reads format {FORMAT}."
        )
    settings, fitted = dict(record["settings"]), record["fitted"]
    if settings["penalty"] == "inf":
        settings["penalty"] = np.inf
    model = RobustNewsvendor(**settings)
    policy = [f"policy_{i}" for i in range(fitted["policy_arrays"])]
    scales = [f"{name}_{field}" for name in ("contexts", "demands") for field in Scaling._fields]
    arrays = read_arrays(folder / "arrays.npz", (*policy, *scales, "move_scales"))
    for name in ("n_iter_", "seed_", "n_outputs_", "n_features_in_", "nonnegative_", "loss_curve_"):
        setattr(model, name, fitted[name])
    model.penalty_, model._flat = float(fitted["penalty_"]), fitted["flat"]
    model._arrays, model.move_scales_ = [arrays[name] for name in policy], arrays["move_scales"]
    scaling = lambda name: Scaling(*(arrays[f"{name}_{field}"] for field in Scaling._fields))
    model.prepared_ = Prepared(scaling("contexts"), scaling("demands"), fitted["unit"], None)
    if fitted["names"]:
        model.feature_names_in_ = np.array(fitted["names"], dtype=object)
    return model, record
