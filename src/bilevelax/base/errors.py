"""One shape of message everywhere: name, owner, rule, value, remedy."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import numbers
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilevelax.core.problem import Problem
    from bilevelax.run.records.result import Result


class RunStopped(ValueError):
    """A run that could not go on. ``result`` holds all that was reached before."""

    advice = "The run so far is in the error's `result`."  # for who has called from Python

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(f"{message} {self.advice}")
        self.result = result


def require_integer(name: str, owner: str, value: Any, least: int, most: float = math.inf) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        rule = f">= {least}" if most == math.inf else f"in [{least}, {most}]"
        raise ValueError(f"`{name}` of {owner} must be an integer {rule}. Got {value!r}.")


def require_positive(name: str, owner: str, value: Any, *, optional: bool = False, infinite: bool = False) -> None:
    """A positive number; None where it is ``optional``, infinity where that has a meaning."""
    if value is None and optional:
        return
    if not isinstance(value, numbers.Real) or not float(value) > 0 or (float(value) == math.inf and not infinite):
        rule = "positive and finite" if isinstance(value, float) and value == math.inf else "a positive number"
        raise ValueError(f"`{name}` of {owner} must be {rule}. Got {value!r}.")


def require_share(name: str, owner: str, value: Any, *, one: bool = False) -> None:
    """A number between 0 and 1, or 1 itself with ``one``."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) <= 1 or (float(value) == 1 and not one):
        rule = "lie in (0, 1]" if one else "lie between 0 and 1"
        raise ValueError(f"`{name}` of {owner} must {rule}. Got {value!r}.")


def require_choice(name: str, owner: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"`{name}` of {owner} must be one of {', '.join(map(repr, choices))}. Got {value!r}.")


@functools.lru_cache(maxsize=4096)
def require_signature(name: str, owner: str, function: Callable[..., Any], wanted: tuple[str, ...]) -> None:
    """A function that can be called with arguments in the places of these; looked at once."""
    if not callable(function):
        raise ValueError(f"`{name}` of {owner} must be a function. Got {function!r}.")
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError:
        raise ValueError(
            f"`{name}` of {owner} is called as {name}({', '.join(wanted)}), with {len(wanted)} arguments. "
            f"Got {name}{inspect.signature(function)}."
        ) from None
    except ValueError:  # a builtin without a signature: nothing to check
        pass


def require_key(owner: str, key: Any) -> None:
    """A typed key, or the raw uint32 pair of older code; never a plain integer."""
    import jax  # here: orders from a stored model do not wait for it
    import jax.numpy as jnp

    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    raw = isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim == 1
    if not (typed or raw):
        raise ValueError(f"`key` of {owner} must be one JAX random key, e.g. jax.random.key(0). Got {key!r}.")


def refuse_projection(owner: str, project: Any) -> None:
    if project is not None:
        raise ValueError(
            f"`project` of {owner} would leave the gradient wrong: a set that y is chosen from belongs to the problem. "
            f"Give it there, e.g. Problem(..., constraint=bx.box(0.0, 1.0)). Got {project!r}."
        )


def require_unconstrained(
    owner: str, problem: Problem, instead: str = "saa, antithetic_mlmc, rt_mlmc or dl_sgd"
) -> None:
    """For what would silently ignore that the follower chooses from a set."""
    if problem.constraint is not None:
        raise ValueError(
            f"{owner} ignores the problem's `constraint`, so its gradient would be wrong. Use {instead} instead. "
            f"Got a {type(problem.constraint).__name__.lower()}."
        )


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
