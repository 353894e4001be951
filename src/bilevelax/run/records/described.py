"""An estimator or an optimizer in one line, for who lists runs: who made it, with which settings.

Both are functions that hold their settings. What is read here is shown, never compared or computed with.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

from bilevelax.core.estimate import Estimator

PLAIN = (bool, int, float, str)
LONGEST = 160  # characters
WRAPPERS = ("with_extra_args_support", "stateless", "projected", "freely")  # whose name tells nothing
INSIDE = ("estimate", "function", "learning_rate", "step_size_fn", "schedule")  # functions with settings of their own
DEEPEST = 6


def described(estimator: Estimator) -> str:
    """E.g. ``minibatch(rt_mlmc(K=6, batch=1, base_level=1), m=4, mode=stratified)``."""
    return _cut(_of_estimator(estimator))


def described_optimizer(optimizer: Any) -> str:
    """E.g. ``chain(scale_by_adam(b1=0.9, ...), scale(step_size=-0.01))``."""
    return _cut(_told(optimizer.update))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _of_estimator(estimator: Estimator, depth: int = 0) -> str:
    return _told(estimator.estimate if estimator.levels is None else estimator.levels.start, depth)


def _told(function: Callable[..., Any], depth: int = 0) -> str:
    """Name and settings of whoever made a function: what it was bound to, or closes over."""
    if isinstance(function, functools.partial):
        name, held = function.func.__module__.rsplit(".", 1)[-1], dict(function.keywords)
    elif inspect.isfunction(function):
        name, held = function.__qualname__.split(".")[0], _closed_over(function)
    else:
        return str(getattr(function, "__qualname__", type(function).__name__))
    parts = [] if depth > DEEPEST else [each for key, value in held.items() for each in _parts(key, value, depth + 1)]
    if name in WRAPPERS and len(parts) == 1:
        return parts[0]
    return f"{name}({', '.join(dict.fromkeys(parts))})"


def _closed_over(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function holds by name; a variable that its maker deleted is left out, where `inspect` fails."""
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            held[name] = cell.cell_contents
    return held


def _parts(name: str, value: Any, depth: int) -> list[str]:
    """A setting as text: numbers and words, estimators and optimizers inside, nothing else."""
    if isinstance(value, PLAIN):
        return [f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"]
    if isinstance(value, Estimator):
        return [_of_estimator(value, depth)]
    if hasattr(value, "_asdict") and not callable(getattr(value, "update", None)):
        return [each for key, held in value._asdict().items() for each in _parts(key, held, depth)]
    if hasattr(value, "update") and hasattr(value, "init"):
        return [_told(value.update, depth)]
    if isinstance(value, tuple | list) and value and all(map(inspect.isfunction, value)) and name == "update_fns":
        return [_told(each, depth) for each in value]
    if name in INSIDE and callable(value):
        return [_told(value, depth)]
    return []
