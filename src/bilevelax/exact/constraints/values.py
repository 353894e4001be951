"""Bounds and right-hand sides: fixed arrays, or functions of the leader's x and the context."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.base.errors import require_signature
from bilevelax.core.problem import PyTree, X, Xi


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Value:
    """An array (or a tree of them), else a function that makes it."""

    array: PyTree
    function: Callable[..., PyTree] | None = dataclasses.field(metadata={"static": True})
    of: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    def at(self, x: X, xi: Xi) -> PyTree:
        given = {"x": x, "xi": xi}
        return self.array if self.function is None else self.function(*(given[name] for name in self.of))

    @property
    def moves(self) -> bool:
        """Whether the leader can move it."""
        return self.function is not None and "x" in self.of

    def seeing(self, **picks: Callable[[Any], Any]) -> Value:
        """The same for an x or xi of which ``picks`` are what the function takes."""
        function = self.function
        if function is None:
            return self
        taken = [picks.get(name, lambda a: a) for name in self.of]
        return dataclasses.replace(self, function=lambda *args: function(*map(lambda pick, a: pick(a), taken, args)))


def value(name: str, owner: str, given: Any, of: tuple[str, ...] = ("x", "xi")) -> Value:
    """``given`` as a `Value`, or one sentence about what it cannot be."""
    if callable(given):
        require_signature(name, owner, given, of)
        return Value(None, given, of)

    def convert(leaf: Any) -> np.ndarray:
        try:
            array = np.asarray(leaf, np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"`{name}` of {owner} must be numbers, or a function of ({', '.join(of)}). Got {leaf!r}."
            ) from None
        if np.isnan(array).any():
            raise ValueError(f"`{name}` of {owner} must not be NaN. Got {leaf!r}.")
        return array

    leaves = isinstance(given, (list, tuple)) and all(isinstance(a, (int, float)) for a in given)
    return Value(convert(given) if leaves else jax.tree.map(convert, given), None, of)


def takes(function: Callable[..., Any], n: int) -> bool:
    """Whether a function can be called with n arguments."""
    try:
        inspect.signature(function).bind(*range(n))
    except (TypeError, ValueError):
        return False
    return True


def spread(name: str, owner: str, bound: PyTree, like: PyTree) -> jax.Array:
    """A bound as one vector with an entry for each coordinate of y: one number for all, or a tree like y."""
    shapes = jax.tree.leaves(like)
    structure: Any
    leaves, structure = jax.tree.flatten(bound)
    bare = jax.tree_util.treedef_is_leaf(structure)
    if bare and (jnp.ndim(leaves[0]) == 0 or len(shapes) == 1):
        leaves = leaves * len(shapes)
    elif structure != jax.tree.structure(like):
        raise ValueError(
            f"`{name}` of {owner} must be one number or have the structure of y, {jax.tree.structure(like)}. "
            f"Got {structure}."
        )
    pieces = []
    for each, shape in zip(leaves, shapes, strict=True):
        sizes = zip(jnp.shape(each)[::-1], shape.shape[::-1], strict=False)
        if jnp.ndim(each) > shape.ndim or any(a not in (1, b) for a, b in sizes):
            raise ValueError(
                f"`{name}` of {owner} must fit y, which has shape {shape.shape} there. Got shape {jnp.shape(each)}."
            )
        array = jnp.asarray(each, shape.dtype)
        pieces.append(jnp.broadcast_to(array.reshape((1,) * (shape.ndim - array.ndim) + array.shape), shape.shape))
    return jnp.concatenate([piece.ravel() for piece in pieces])
