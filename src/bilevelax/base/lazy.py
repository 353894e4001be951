"""Names of a package that are imported where they are first used, so that others do not wait for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def at_first_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: {name: the module of the package that defines it}.

    A name must not be one of a module beside it: Python would put that module in its place.
    """

    def getattr_of_package(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{places[name]}"), name)

    return getattr_of_package
