"""Optimizers of optax that ask for F itself, such as `optax.lbfgs` with its line search: where F can be computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from bilevelax.core.problem import Problem, X


class Searching(NamedTuple):
    """An optimizer that is given F with its gradient at x, and F as a function of x."""

    init: Callable[..., Any]
    update: Callable[..., Any]
    extra: Callable[[Problem, X], dict[str, Any]]


def missing(optimizer: optax.GradientTransformation, x: X) -> str | None:
    """What the optimizer asks for besides the gradient, as Python tells it; None where that is nothing."""
    try:
        with jax.numpy_dtype_promotion("standard"):  # optax joins integers of different sizes
            jax.eval_shape(lambda x: optimizer.update(x, optimizer.init(x), x), x)
    except TypeError as error:
        if "value" in str(error) and "argument" in str(error):
            return str(error)
    except AttributeError as error:
        usable = all(callable(getattr(optimizer, name, None)) for name in ("init", "update"))
        got = f"This one fails on x: {error}" if usable else f"Got {optimizer!r}"
        raise ValueError(
            "`optimizer` of minimize must be one of optax that takes gradients and x as they are, e.g. "
            f"optax.adam(1e-2); optax.lookahead wants x twice. {got}."
        ) from error
    return None


def with_values(optimizer: optax.GradientTransformation, problem: Problem, x: X) -> Any:
    """The optimizer, given what it asks for where that is exact; else one sentence."""
    asked = missing(optimizer, x)
    if asked is None:
        return optimizer
    if problem.n_contexts is None or problem.support is None or problem.source is not None:
        raise ValueError(
            "`optimizer` of minimize asks for the value of F, which only problems with stored contexts and outcomes "
            f"have (from_arrays, from_splits): {asked.rstrip('.')}. Use `solve`, which needs no step size, or an "
            "optimizer without a line search, e.g. optax.adam(1e-2) or optax.lbfgs(1e-1, linesearch=None)."
        )
    return Searching(freely(optimizer.init), freely(optimizer.update), exact_values)


def freely(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with JAX's own rules of promotion, which optax takes for granted."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call


def exact_values(problem: Problem, x: X) -> dict[str, Any]:
    """``value``, ``grad`` and ``value_fn`` for the update of an optimizer."""

    @jax.custom_vjp
    def F(x: X) -> jax.Array:
        return whole(problem, x)[0]

    F.defvjp(lambda x: whole(problem, x), lambda grad, c: (jax.tree.map(lambda a: c.astype(a.dtype) * a, grad),))
    value, grad = whole(problem, x)
    return {"value": value, "grad": grad, "value_fn": F}


def whole(problem: Problem, x: X) -> tuple[jax.Array, X]:
    """F and its gradient over all contexts and outcomes, one context after another."""
    from bilevelax.exact.sample_average import of_stack, respond_from_start, tight_linear, tight_solver
    from bilevelax.problems.factor import one, with_factor

    told, at = with_factor(problem), one(x)

    def gradient(i: jax.Array) -> tuple[X, jax.Array]:
        xi = problem.nth_context(i)
        etas, weights = problem.outcomes(xi)
        average = of_stack(told, at, xi, etas, weights, len(weights))
        solver = tight_solver(problem.start(x, xi))
        found: tuple[X, jax.Array] = respond_from_start(average, told, at, xi, solver, tight_linear()).grad
        return found

    grads, costs = lax.map(gradient, jnp.arange(problem.n_contexts))
    return jnp.mean(costs), jax.tree.map(lambda a: jnp.mean(a, axis=0), grads)
