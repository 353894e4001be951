"""Fitted rules that are a few arrays, as folders (`model_folder`): robust, ranking and instrumental estimators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bilevelax.base.declared import Check, either, integer, list_of, number, one_of, record, text
from bilevelax.base.npz import read_arrays
from bilevelax.sklearn.model_folder import read_folder, require, write_folder

PLAIN = (str, int, float, bool, type(None))
SETTING = either(text(), number(), one_of(True, False, None))  # `_require_settings` of the estimator asks for more
SHARED = {"n_features_in_": integer(1, 10**6), "names": list_of(text())}
Arrays = dict[str, np.ndarray]


class KeptInFolder:
    """`save` and `load` for an estimator that says what of its fit is kept."""

    _declared: ClassVar[Mapping[str, Check]]  # of what `_kept` gives
    n_features_in_: int

    def _kept(self) -> tuple[dict[str, Any], Arrays]:
        """(values for JSON, arrays): all that `predict` needs."""
        raise NotImplementedError

    def _shapes(self, fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """Of the arrays, as settings, columns and what was fitted ask for."""
        raise NotImplementedError

    def _restore(self, fitted: dict[str, Any], arrays: Arrays, path: Path) -> None:
        raise NotImplementedError

    def _require_settings(self) -> None:
        raise NotImplementedError

    def save(self, folder: str | Path) -> Path:
        """Write what predicting needs, without the rows: model.json and arrays.npz. Returns the folder."""
        check_is_fitted(self)
        settings = self.get_params(deep=False)  # type: ignore[attr-defined]
        odd = [name for name, value in settings.items() if not isinstance(value, PLAIN)]
        if odd:
            raise ValueError(f"A model whose `{odd[0]}` is an object cannot be saved as JSON; give a plain value.")
        fitted, arrays = self._kept()
        fitted |= {"n_features_in_": self.n_features_in_, "names": list(getattr(self, "feature_names_in_", []))}
        body = {"settings": settings, "fitted": fitted}
        return write_folder(folder, type(self).__name__, body, {k: np.asarray(a, float) for k, a in arrays.items()})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model that `save` wrote; nothing is unpickled."""
        names = cls().get_params(deep=False)  # type: ignore[attr-defined]
        fields = {"settings": record(dict.fromkeys(names, SETTING)), "fitted": record(SHARED | dict(cls._declared))}
        place, document = read_folder(folder, cls.__name__, fields, {})
        path, fitted = place / "model.json", dict(document["fitted"])
        model = cls(**document["settings"])
        try:
            model._require_settings()
        except (TypeError, ValueError) as error:
            require(False, path, "settings", f"those of a {cls.__name__}", str(error))
        columns, called = fitted.pop("n_features_in_"), fitted.pop("names")
        good = len(called) in (0, columns)
        require(good, path, "fitted.names", f"a list of {columns} texts, or empty", called)
        model.n_features_in_ = columns
        if called:
            model.feature_names_in_ = np.array(called, dtype=object)  # type: ignore[attr-defined]
        shapes = model._shapes(fitted)
        model._restore(fitted, read_arrays(place / "arrays.npz", tuple(shapes), shapes=lambda headers: shapes), path)
        return model


def require_above_zero(path: Path, name: str, array: np.ndarray) -> None:
    least = float(array.min())
    require(least > 0, path.with_name("arrays.npz"), name, "positive", least)
