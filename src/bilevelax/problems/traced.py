"""What a problem's functions return, found by tracing them; what they do wrong there, and how to mend it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax

from bilevelax.core.problem import Problem, PyTree, X
from bilevelax.problems.validate import Shapes, describe

LARGE = 2**24  # bytes that a function may hold by itself: beyond, every program gets a slow, second copy
UNDER_JIT = "Call it by hand to see where; it must run under jax.jit."


def abstractly(name: str, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """The shapes that a function returns; warns of arrays that it holds instead of getting them."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    size = sum(getattr(constant, "nbytes", 0) for constant in program.consts)
    if size > LARGE:
        warnings.warn(
            f"`{name}` of Problem closes over arrays of {size / 1e6:.0f} MB, which are copied into every program that "
            "is compiled. Give them as Problem(..., data=...): samplers get them as their last argument, and pass on "
            "to f and g in xi or eta what these need of them.",
            stacklevel=2,
        )
    return shapes


def remedy(name: str, error: Exception, otherwise: str) -> str:
    """What to do about an error while tracing."""
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return (
            f"{name} gives a traced value to NumPy: index with jnp.asarray(array)[i], call jnp instead of np, or let a "
            "sampler pick the row from `data` and pass it on in xi or eta."
        )
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return f"{name} branches on a traced value: use jnp.where or jax.lax.cond instead of if."
    if isinstance(error, jax.errors.TracerIntegerConversionError | jax.errors.ConcretizationTypeError):
        return f"{name} needs the number behind a traced value: index jnp arrays instead of lists, without int(...)."
    return otherwise


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


def loss_of(name: str, problem: Problem, x: X, shapes: Shapes) -> Any:
    """The shape of f or g on what the samplers and init_y return."""
    try:
        return abstractly(name, getattr(problem, name), x, shapes.y, shapes.eta, shapes.xi)
    except Exception as error:
        raise ValueError(
            f"`{name}` of Problem failed on y = {describe(shapes.y)} from init_y, eta = {describe(shapes.eta)} and "
            f"xi = {describe(shapes.xi)}: {told(error)} "
            + remedy(name, error, f"Make init_y and the samplers return what {name} takes.")
        ) from error


def traced(name: str, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """The shapes that a function of the problem returns, or one sentence about why it does not."""
    try:
        return abstractly(name, function, *args)
    except Exception as error:
        raise ValueError(f"`{name}` of Problem failed: {told(error)} {remedy(name, error, UNDER_JIT)}") from error
