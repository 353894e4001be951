"""Bad input gets one clear sentence, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random

from bilevelax.core.problem import Eta, Key, Problem, PyTree, X, Xi, Y


class Shapes(NamedTuple):
    """Abstract values of everything a problem makes."""

    xi: Xi
    eta: Eta
    y: Y


def as_arrays(name: str, owner: str, value: PyTree) -> PyTree:
    """``value`` with array leaves of floating point, or one sentence about the first other leaf."""

    def convert(path: Any, leaf: Any) -> jax.Array:
        where = f"`{name}{jax.tree_util.keystr(path)}` of {owner}"
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"{where} must be an array. Got {leaf!r}; keep what is not optimised out of {name}, "
                "e.g. with equinox.partition(model, equinox.is_inexact_array)."
            ) from None
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(
                f"{where} must be floating point. Got {array.dtype}; convert it, e.g. with .astype(float)."
            )
        require_precision(where, array.dtype, f"give {name} as float32")
        return jnp.asarray(array, dtype=array.dtype)

    converted = jax.tree_util.tree_map_with_path(convert, value)
    if not jax.tree.leaves(converted):
        raise ValueError(f"`{name}` of {owner} must hold at least one array. Got {value!r}.")
    return converted


def require_precision(where: str, dtype: Any, remedy: str) -> None:
    """Single or double: in half precision a follower's systems cannot be solved, nor small steps be taken."""
    if jnp.finfo(dtype).bits < 32:
        raise ValueError(
            f"{where} must be float32 or float64. Got {dtype}; {remedy} and let f and g convert what may be coarse."
        )


def describe(value: PyTree) -> str:
    """Shapes and dtypes in the structure of ``value``, in one line."""
    return str(jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", value)).replace("'", "")


def alike(a: PyTree, b: PyTree) -> bool:
    """Equal structure, shapes and dtypes."""
    structures: list[Any] = [jax.tree.structure(a), jax.tree.structure(b)]
    return structures[0] == structures[1] and describe(a) == describe(b)


def _twice(name: str, symbol: str, draw: Callable[[str], PyTree]) -> PyTree:
    first, second = draw(name), draw(name)
    if not alike(first, second):
        raise ValueError(
            f"`{name}` returned {describe(second)} for {symbol} on the second call and {describe(first)} on the first; "
            "give it a fixed structure, shape and dtype."
        )
    return first


def outcome(key: Key, xi: Xi, problem: Problem) -> Eta:
    """A draw of eta, or the row's own where a problem knows pairs only (`from_joint`)."""
    return getattr(problem.sample_conditional, "of_row", problem.sample_conditional)(key, xi, problem.data)


def check_shapes(problem: Problem, x: X) -> Shapes:
    """Evaluate every function of the problem abstractly; raise one sentence about the first that is wrong."""
    from bilevelax.problems.traced import loss_of, traced  # that part stands on this one

    if problem.constraint is not None and not hasattr(problem.constraint, "land"):
        from bilevelax.problems.constrained import check_constraint

        check_constraint(problem, x, (), ())  # refuses it
    key = jax.eval_shape(lambda: random.key(0))
    # fresh lambdas: eval_shape remembers what it traced, and a sampler that changes must be seen twice
    xi = _twice("sample_context", "xi", lambda name: traced(name, lambda key, p: p.context(key), key, problem))
    eta = _twice(
        "sample_conditional",
        "eta",
        lambda name: traced(name, lambda key, xi, p: outcome(key, xi, p), key, xi, problem),
    )
    y = traced("init_y", lambda x, xi: problem.replace(constraint=None).start(x, xi), x, xi)
    for path, leaf in jax.tree_util.tree_leaves_with_path(y):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"`init_y` of Problem must return floating point. Got {leaf.dtype} at y{jax.tree_util.keystr(path)}."
            )
        require_precision(f"`init_y{jax.tree_util.keystr(path)}` of Problem", leaf.dtype, "return float32")
    if not jax.tree.leaves(y):
        raise ValueError(
            "`init_y` of Problem must return at least one array. Got none; for no lower level use stochastic()."
        )
    if problem.constraint is not None:
        from bilevelax.problems.constrained import check_constraint

        check_constraint(problem, x, y, xi)
    shapes = Shapes(xi, eta, y)
    if problem.support is not None or problem.guess is not None or problem.n_contexts is not None:
        from bilevelax.problems.optional import check_optional

        check_optional(problem, x, shapes)
    for name in ("f", "g"):
        loss = loss_of(name, problem, x, shapes)
        if (
            not isinstance(loss, jax.ShapeDtypeStruct)
            or loss.shape != ()
            or not jnp.issubdtype(loss.dtype, jnp.floating)
        ):
            raise ValueError(f"`{name}` of Problem must return one floating-point scalar. Got {describe(loss)}.")
        require_precision(f"`{name}` of Problem", loss.dtype, "sum up in float32")
    return shapes
