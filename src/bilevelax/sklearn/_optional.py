"""scikit-learn and pandas are extras: one clear sentence where they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def need(package: str, owner: str, extra: str = "sklearn") -> Any:
    """The module, or a sentence that says what to install."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package.partition(".")[0]:
            raise
        raise ImportError(
            f"{owner} needs {package.partition('.')[0]}, which is not installed: pip install 'bilevelax[{extra}]'."
        ) from error
