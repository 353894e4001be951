"""A fitted newsvendor as a folder (`model_folder`): what is written, and what is required of what is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bilevelax.applications.newsvendor.prepare import Prepared, Scaling
from bilevelax.applications.newsvendor.stored_rules import STORED_RULES
from bilevelax.base.declared import either, integer, list_of, number, one_of, record, text
from bilevelax.base.npz import Header, read_arrays
from bilevelax.sklearn._candidate import BLEND, BOOSTED, LINEAR, RIVALS, Candidate
from bilevelax.sklearn._scored import CostColumn
from bilevelax.sklearn.model_folder import REMEDY, read_folder, require, write_folder
from bilevelax.sklearn.newsvendor import RobustNewsvendor
from bilevelax.sklearn.stored_forest import MOST_NODES, Boosts, Trees
from bilevelax.tables.schema import DECLARED, Schema

KIND = "RobustNewsvendor"
FITTED = ("n_iter_", "seed_", "n_outputs_", "n_features_in_", "nonnegative_", "loss_curve_")  # as they are
PLAIN = (str, int, float, bool, type(None))
NOT_SAVED = ("perturb", "cv")  # of the constructor: only `fit` needs them
YES_NO = one_of(True, False)
COUNT = integer(0, 2**53)
COST_NAMES = ("holding_cost", "backlog_cost")
COST = number(0)
COLUMN = record({"column": integer(0, 10**6)})
COSTS = either(COST, list_of(COST, least=1), COLUMN)  # one for all products, one for each, or one for each row
SETTINGS = {
    **{name: COSTS for name in COST_NAMES},
    "smoothing": COST,
    **{name: either(COST, one_of("auto")) for name in ("learning_rate", "weight_decay")},
    "penalty": either(number(1e-300), one_of("inf", "cv", "auto")),
    "policy": one_of(*STORED_RULES, "auto"),
    "members": integer(1, 10**6),
    **{name: COUNT for name in ("n_atoms", "batch_size", "ascent_steps", "patience")},
    "max_iter": either(COUNT, one_of(None)),
    "early_stopping": YES_NO,
    "validation_fraction": number(0, 1),
    "random_state": either(COUNT, one_of(None)),
}
PLAIN_VALUE = either(text(), number(), one_of(True, False, None))  # of settings that only `fit` reads
DECLARED_FITTED = record(
    {
        "n_iter_": COUNT,
        "seed_": integer(0, 2**31),
        "n_outputs_": integer(1, 10**6),
        "n_features_in_": integer(1, 10**6),
        "nonnegative_": YES_NO,
        "loss_curve_": list_of(number()),
        "penalty_": text(r"inf|[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?", "a positive number as a text"),
        "flat": YES_NO,
        "unit": number(1e-300),
        "policy_arrays": integer(1, 1000),
        "names": list_of(text()),
    },
    {  # since 0.2
        "chosen": record(
            {"policy": one_of(*STORED_RULES), "conditional": text(), "noise": either(number(1e-300), one_of(None))}
        ),
        "fallback": either(one_of(None), one_of(*RIVALS, BLEND)),
        "shift": list_of(number()),
        "service": list_of(list_of(either(number(0, 1), one_of(None)))),
    },
)
SERVICE = ("service_target_", "service_before_", "service_achieved_")


def save_newsvendor(model: RobustNewsvendor, folder: str | Path, extra: dict[str, Any], **arrays: np.ndarray) -> Path:
    """Write what `predict` needs, ``extra`` (plain JSON) and further arrays."""
    settings = {k: value for k, value in model.get_params(deep=False).items() if k not in NOT_SAVED}
    for name in COST_NAMES:  # one for each product
        cost = settings[name]
        settings[name] = {"column": cost.number} if isinstance(cost, CostColumn) else np.asarray(cost, float).tolist()
    odd = [name for name in settings.keys() - set(COST_NAMES) if not isinstance(settings[name], PLAIN)]
    if odd:
        raise ValueError(f"A model whose `{odd[0]}` is an object cannot be saved as JSON; use pickle or skops for it.")
    if isinstance(settings["penalty"], float) and np.isinf(settings["penalty"]):
        settings["penalty"] = "inf"
    fitted = {
        **{name: getattr(model, name) for name in FITTED},
        "penalty_": str(model.penalty_),
        "flat": model._flat,
        "unit": model.prepared_.unit,
        "policy_arrays": len(model._arrays),
        "names": list(getattr(model, "feature_names_in_", [])),
        "chosen": {name: getattr(model._candidate, name) for name in ("policy", "conditional", "noise")},
        "fallback": model.fallback_,
        "shift": model.shift_.tolist(),
        "service": [[None if np.isnan(v) else float(v) for v in getattr(model, name)] for name in SERVICE],
    }
    if model.fallback_ and "X" not in arrays:
        arrays |= dict(zip(("X", "y"), model._kept_rows(), strict=True))
    arrays |= trees_of(model, arrays)
    arrays |= answers_of(model)
    stored = {f"policy_{i}": a for i, a in enumerate(model._arrays)} | arrays
    stored["move_scales"] = model.move_scales_
    for name in ("contexts", "demands"):
        stored |= {f"{name}_{k}": a for k, a in getattr(model.prepared_, name)._asdict().items()}
    return write_folder(folder, KIND, {"settings": settings, "fitted": fitted, **extra}, stored)


def load_newsvendor(folder: str | Path) -> tuple[RobustNewsvendor, dict[str, Any]]:
    """(a model that can `predict`, the whole record).

    The conditional distribution is not stored: `worst_case_contexts` fits it again on the rows that are kept.
    """
    names = set(RobustNewsvendor().get_params(deep=False)) - set(NOT_SAVED)
    settings_declared = record(SETTINGS, {name: PLAIN_VALUE for name in names - set(SETTINGS)})
    fields = {"settings": settings_declared, "fitted": DECLARED_FITTED}
    place, document = read_folder(folder, KIND, fields, {"schema": DECLARED})
    settings, fitted = dict(document["settings"]), document["fitted"]
    told = {"policy": settings["policy"], "conditional": settings.get("conditional", "forest"), "noise": None}
    chosen = fitted.get("chosen", told)
    good = chosen["policy"] in STORED_RULES
    require(good, place / "model.json", "settings.policy", "a named rule where none was chosen", chosen["policy"])
    shapes = _policy_shapes(settings | chosen, fitted)
    _require_parts_that_fit(place / "model.json", document, len(shapes))
    shapes |= {f"contexts_{field}": (fitted["n_features_in_"],) for field in Scaling._fields}
    shapes |= {f"demands_{field}": (fitted["n_outputs_"],) for field in Scaling._fields}
    shapes["move_scales"] = (fitted["n_features_in_"],)
    arrays = read_arrays(place / "arrays.npz", tuple(shapes), shapes=lambda headers: shapes)
    scalings = {
        name: Scaling(*(arrays[f"{name}_{field}"] for field in Scaling._fields)) for name in ("contexts", "demands")
    }
    _require_scalings_that_fit(place, document, scalings)
    if settings["penalty"] == "inf":
        settings["penalty"] = np.inf
    model = RobustNewsvendor(**settings | {name: stored_cost(settings[name]) for name in COST_NAMES})
    for name in FITTED:
        setattr(model, name, fitted[name])
    model.penalty_, model._flat = float(fitted["penalty_"]), fitted["flat"]
    model._arrays = [arrays[f"policy_{i}"] for i in range(fitted["policy_arrays"])]
    model.move_scales_ = arrays["move_scales"]
    model.prepared_ = Prepared(scalings["contexts"], scalings["demands"], fitted["unit"], None)
    model._folder, model._kept, model._baseline = place, None, None
    model._candidate = Candidate(chosen["policy"], chosen["conditional"], model.penalty_, chosen["noise"])
    model._steps, model.chosen_ = model.max_iter or model.n_iter_, model._candidate.told()
    _remember_service(model, fitted, place)
    if fitted["names"]:
        model.feature_names_in_ = np.array(fitted["names"], dtype=object)
    return model, document


def stored_cost(told: Any) -> Any:
    return CostColumn(told["column"]) if isinstance(told, dict) else told


def _remember_service(model: RobustNewsvendor, fitted: dict[str, Any], place: Path) -> None:
    """Fallback, correction and service; folders of 0.1 know of none."""
    outputs = fitted["n_outputs_"]
    model.fallback_ = fitted.get("fallback")
    told = [fitted.get("shift", [0.0] * outputs), *fitted.get("service", [[None] * outputs] * len(SERVICE))]
    sizes = [*map(len, told)]
    wanted = place / "model.json", "fitted.service and fitted.shift", f"lists of {outputs} numbers"
    require(sizes == [outputs] * (1 + len(SERVICE)), *wanted, sizes)
    for name, values in zip(("shift_", *SERVICE), told, strict=True):
        setattr(model, name, np.array([np.nan if value is None else value for value in values], float))


def kept_rows(folder: Path, model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Contexts and demands that `bilevelax newsvendor fit` stores beside the model."""

    def shapes(headers: Mapping[str, Header]) -> dict[str, tuple[int, ...]]:
        rows = max(headers["X"].shape[:1], (2,))
        return {"X": (*rows, model.n_features_in_), "y": (*rows, model.n_outputs_)}

    arrays = read_arrays(folder / "arrays.npz", ("X", "y"), shapes=shapes)
    return arrays["X"], arrays["y"]


def trees_of(model: RobustNewsvendor, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The forest behind the range of demand, where it was fitted on the rows that are kept and is no large one."""
    if "X" not in arrays or model._candidate.conditional not in ("forest", "dirac"):
        return {}
    forest = model._demand_given_contexts()
    same = forest.X_.shape == arrays["X"].shape and np.array_equal(forest.y_, arrays["y"].reshape(forest.y_.shape))
    return forest.trees_.stored() if same and len(forest.trees_.left) <= MOST_NODES else {}


def answers_of(model: RobustNewsvendor) -> dict[str, np.ndarray]:
    """The linear or boosted quantiles, where these order: nobody fits them again to order."""
    if model.fallback_ == LINEAR:
        return {"lines": model._instead().lines_}
    return model._instead().boosts_.stored() if model.fallback_ == BOOSTED else {}


def kept_trees(folder: Path, model: Any) -> Trees | None:
    """Those of `trees_of`, if the folder has any."""
    return _read_trees(folder, model, Trees, "forest", ())


def kept_boosts(folder: Path, model: Any) -> Boosts | None:
    """The boosted quantiles that order, if the folder has any."""
    return _read_trees(folder, model, Boosts, "boosts", ("boosts_values", "boosts_starts"))


def _read_trees(folder: Path, model: Any, kind: Any, prefix: str, others: tuple[str, ...]) -> Any:
    """Trees that were ``stored``, None where there are none; roots and starts have lengths of their own."""
    names = [*(f"{prefix}_{name}" for name in Trees._fields), *others]
    short = (f"{prefix}_roots", f"{prefix}_starts")

    def shapes(headers: Mapping[str, Header]) -> dict[str, tuple[int, ...]]:
        if not all(name in headers for name in names):
            return {}
        nodes = headers[f"{prefix}_left"].shape[:1]
        return {name: max(headers[name].shape[:1], (1,)) if name in short else nodes for name in names}

    arrays = read_arrays(folder / "arrays.npz", (), names, shapes=shapes)
    if len(arrays) < len(names):
        return None
    try:
        return kind.read(arrays, model.n_features_in_)
    except ValueError as error:
        raise ValueError(f"{folder / 'arrays.npz'} is damaged or from another program ({error}): {REMEDY}.") from error


def kept_lines(folder: Path, model: Any) -> np.ndarray | None:
    """The linear quantiles that order, if the folder has any."""

    def shapes(headers: Mapping[str, Header]) -> dict[str, tuple[int, ...]]:
        if "lines" not in headers:
            return {}
        levels = max(headers["lines"].shape[:1], (model.n_outputs_,))
        return {"lines": (*levels, 1 + model.n_features_in_)}

    return read_arrays(folder / "arrays.npz", (), ["lines"], shapes=shapes).get("lines")


def _policy_shapes(settings: dict[str, Any], fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of the members' stacked arrays."""
    one = STORED_RULES[settings["policy"]].shapes(fitted["n_features_in_"], fitted["n_outputs_"])
    return {f"policy_{i}": (settings["members"], *shape) for i, shape in enumerate(one)}


def _require_parts_that_fit(path: Path, document: dict[str, Any], arrays: int) -> None:
    fitted = document["fitted"]
    columns, outputs, names = fitted["n_features_in_"], fitted["n_outputs_"], fitted["names"]
    told = fitted["policy_arrays"]
    require(told == arrays, path, "fitted.policy_arrays", f"{arrays}, as the policy has", told)
    require(outputs == 1 or not fitted["flat"], path, "fitted.flat", "false where there are many outputs", True)
    for name in COST_NAMES:
        cost = document["settings"][name]
        good = not isinstance(cost, list) or len(cost) == outputs
        good &= not isinstance(cost, dict) or cost["column"] < columns
        require(good, path, f"settings.{name}", f"a number, a list of {outputs}, or one of {columns} columns", cost)
    good = not names or len(set(names)) == len(names) == columns
    require(good, path, "fitted.names", f"a list of {columns} different texts, or empty", names)
    if "schema" in document:
        schema = Schema(**document["schema"])
        targets = schema.targets
        require(len(targets) == outputs, path, "schema.targets", f"a list of {outputs} texts", targets)
        good = len(names) == columns and schema.features() == names
        require(good, path, "fitted.names", "those of the encoded columns of `schema`", names)


def _require_scalings_that_fit(folder: Path, document: dict[str, Any], scalings: dict[str, Scaling]) -> None:
    for name, each in scalings.items():
        path = folder / "arrays.npz"
        require(bool((each.scale > 0).all()), path, f"{name}_scale", "positive", each.scale.min())
        slack = 1e-6 * (np.abs(each.low) + np.abs(each.high))
        inside = (each.low - slack <= each.centre) & (each.centre <= each.high + slack)
        where = int(np.argmin(inside))
        rule = f"between the least and the largest value, {each.low[where]:g} and {each.high[where]:g}"
        require(bool(inside.all()), path, f"{name}_centre", rule, float(each.centre[where]))
    settings, unit = document["settings"], document["fitted"]["unit"]
    if "schema" in document:  # fitted from a file, so that rows had these costs, or those of a column
        mean = lambda cost: scalings["contexts"].centre[cost["column"]] if isinstance(cost, dict) else cost
        costs = np.add(*(mean(settings[name]) for name in COST_NAMES))
        expected = float(np.sum(costs * scalings["demands"].scale))
        rule = f"{expected:g}, from the costs and the scale of the demands"
        require(bool(np.isclose(unit, expected, rtol=1e-6)), folder / "model.json", "fitted.unit", rule, unit)
