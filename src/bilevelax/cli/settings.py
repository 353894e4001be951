"""Settings typed on a command line: ``name=value`` pairs for a factory's arguments."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any


def parse(pairs: list[str]) -> dict[str, Any]:
    """``["lam=2", "rule=affine"]`` as {"lam": 2, "rule": "affine"}."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"A setting must read name=value. Got {pair!r}.")
        try:
            settings[name.strip()] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name.strip()] = value
    return settings


def call(kind: str, name: str, factory: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """``factory(**settings)``, or a sentence that names the settings it takes."""
    known = list(inspect.signature(factory).parameters)
    for setting in settings:
        if setting not in known:
            raise ValueError(f"{kind} {name} takes no setting {setting!r}. It takes: {', '.join(known) or 'none'}.")
    try:
        return factory(**settings)
    except TypeError as error:
        given = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
        raise ValueError(f"{kind} {name} cannot be built from {given or 'its defaults'}: {error}.") from error
