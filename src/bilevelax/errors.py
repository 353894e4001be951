"""One shape of message everywhere: name, owner, rule, value, remedy."""

from __future__ import annotations

import importlib
import numbers
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from bilevelax.result import Result


class RunStopped(ValueError):
    """A run that could not go on. ``result`` holds all that was reached before."""

    advice = "The run so far is in the error's `result`."  # for who has called from Python

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(f"{message} {self.advice}")
        self.result = result


def require_integer(name: str, owner: str, value: Any, least: int) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` of {owner} must be an integer >= {least}. Got {value!r}.")


def require_positive(name: str, owner: str, value: Any) -> None:
    if value is not None and not (isinstance(value, numbers.Real) and float(value) > 0):
        raise ValueError(f"`{name}` of {owner} must be a positive number. Got {value!r}.")


def require_choice(name: str, owner: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"`{name}` of {owner} must be one of {', '.join(map(repr, choices))}. Got {value!r}.")


def require_key(owner: str, key: Any) -> None:
    """A typed key, or the raw uint32 pair of older code; never a plain integer."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    raw = isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim == 1
    if not (typed or raw):
        raise ValueError(f"`key` of {owner} must be one JAX random key, e.g. jax.random.key(0). Got {key!r}.")


def require_package(package: str, owner: str, extra: str) -> ModuleType:
    """An optional package, or a sentence that says what to install."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(
            f"{owner} needs {package}, which is not installed: pip install 'bilevelax[{extra}]'."
        ) from error
