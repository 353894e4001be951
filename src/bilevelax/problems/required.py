"""What is required of a problem's parts when it is made, and how it is told in one line."""

from __future__ import annotations

from typing import Any

import jax

from bilevelax.base.errors import require_integer, require_signature
from bilevelax.core.problem import Problem

# How each function of a problem is called; validated once per function.
SIGNATURES = {
    "f": ("x", "y", "eta", "xi"),
    "g": ("x", "y", "eta", "xi"),
    "sample_context": ("key", "data"),
    "sample_conditional": ("key", "xi", "data"),
    "init_y": ("x", "xi"),
    "context_at": ("i", "data"),
    "support": ("xi", "data"),
    "guess": ("x", "xi", "data"),
}
OPTIONAL = ("context_at", "support", "guess")


def require(problem: Problem) -> None:
    """Functions that can be called as they will be, and constants that can be."""
    for name in SIGNATURES:
        if name not in OPTIONAL or getattr(problem, name) is not None:
            require_signature(name, "Problem", getattr(problem, name), SIGNATURES[name])
    for name in ("mu_g", "L_g1"):
        if getattr(problem, name) is not None:
            object.__setattr__(problem, name, _positive(name, getattr(problem, name)))
    if problem.n_contexts is not None:
        require_integer("n_contexts", "Problem", problem.n_contexts, 1, 2**31 - 1)
    if problem.mu_g is not None and problem.L_g1 is not None and problem.mu_g > problem.L_g1:
        raise ValueError(
            f"`mu_g` of Problem must not exceed `L_g1`. Got mu_g = {problem.mu_g:g} and L_g1 = {problem.L_g1:g}; "
            "mu_g bounds the Hessian of g in y from below, L_g1 from above."
        )


def _positive(name: str, value: Any) -> float:
    """A constant as a plain number; arrays of one number are taken too."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    if not 0 < found < float("inf"):
        raise ValueError(f"`{name}` of Problem must be a positive number. Got {value!r}.")
    return found


def short(problem: Problem) -> str:
    """In one line: its losses, contexts, outcomes, data, set and constants; no array is printed."""
    told = {
        "f": _name(problem.f),
        "g": _name(problem.g),
        "contexts": "drawn" if problem.n_contexts is None else problem.n_contexts,
        "outcomes": "stored" if problem.support else "on disk" if problem.blocks else "drawn",
        "data": _size(problem.data),
        "constraint": problem.constraint and type(problem.constraint).__name__.lower(),
        "mu_g": problem.mu_g,
        "L_g1": problem.L_g1,
    }
    return f"Problem({', '.join(f'{name}={value}' for name, value in told.items() if value is not None)})"


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _size(data: Any) -> str | None:
    """How many arrays and bytes; traced ones have a size too."""
    leaves = [leaf for leaf in jax.tree.leaves(data) if hasattr(leaf, "dtype")]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    unit, name = next((each for each in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if size >= each[0]), (1, "bytes"))
    return f"{len(leaves)} arrays of {size / unit:.3g} {name}" if leaves else None
