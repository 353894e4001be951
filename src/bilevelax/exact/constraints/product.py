"""A set for each part of a y that is a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from optax import tree

from bilevelax.core.problem import X, Xi, Y
from bilevelax.exact.constraints.constraint import Constraint, Face, Look, registered


def _is_part(node: Any) -> bool:
    return node is None or isinstance(node, Constraint)


@registered
class Product(Constraint):
    """Every part of y in its own set; None where a part is free."""

    sets: Any

    def each(self, function: Callable[..., Any], *trees_: Any) -> list[Any]:
        """``function(set, part, ...)`` of every part that has a set; None for the others."""
        structure: Any
        sets, structure = jax.tree.flatten(self.sets, is_leaf=_is_part)
        try:
            parts = [structure.flatten_up_to(a) for a in trees_]
        except ValueError as error:
            raise ValueError(f"`sets` of product must have the structure of y, or of its beginning. {error}") from None
        return [None if s is None else function(s, *p) for s, *p in zip(sets, *parts, strict=True)]

    def joined(self, parts: list[Any], otherwise: Y) -> Y:
        """A tree like ``otherwise`` with the parts that are not None."""
        structure: Any = jax.tree.structure(self.sets, is_leaf=_is_part)
        both = zip(parts, structure.flatten_up_to(otherwise), strict=True)
        return jax.tree.unflatten(structure, [old if new is None else new for new, old in both])

    @property
    def moves(self) -> bool:
        return any(self.each(lambda s: s.moves))

    def seeing(self, **picks: Callable[[Any], Any]) -> Product:
        structure: Any
        sets, structure = jax.tree.flatten(self.sets, is_leaf=_is_part)
        return Product(structure.unflatten([None if s is None else s.seeing(**picks) for s in sets]))

    def land(self, z: Y, x: X, xi: Xi) -> tuple[Y, Face]:
        found = self.each(lambda s, z: s.land(z, x, xi), z)
        return self.joined([f and f[0] for f in found], z), [f and f[1] for f in found]

    def faces(self, face: Face) -> Any:
        """The faces in the structure of the sets."""
        return jax.tree.unflatten(jax.tree.structure(self.sets, is_leaf=_is_part), face)

    def tangent(self, face: Face, r: Y) -> Y:
        return self.joined(self.each(lambda s, f, r: s.tangent(f, r), self.faces(face), r), r)

    def bend(self, face: Face, r: Y) -> Y:
        return self.joined(self.each(lambda s, f, r: s.bend(f, r), self.faces(face), r), tree.zeros_like(r))

    def shift(self, face: Face, x: X, xi: Xi, y: Y, r: Y, rest: Y, t: Any) -> jax.Array:
        parts = self.each(lambda s, f, y, r, rest: s.shift(f, x, xi, y, r, rest, t), self.faces(face), y, r, rest)
        kind = tree.dtype(y, "highest")
        return sum((p.astype(kind) for p in parts if p is not None), jnp.zeros((), kind))

    def seen(self, face: Face, x: X, xi: Xi, y: Y, force: Y) -> Look:
        looks = [a for a in self.each(lambda s, *p: s.seen(p[0], x, xi, *p[1:]), self.faces(face), y, force) if a]
        active, *least = (jnp.stack([jnp.asarray(a, float) for a in part]) for part in zip(*looks, strict=True))
        return Look(active.sum(), *(a.min() for a in least))


def product(sets: Any) -> Product:
    """A tree of sets with the structure of y, or of its beginning; None leaves a part free.

    E.g. ``product({"price": nonnegative(), "share": simplex(), "rest": None})``.
    """
    leaves = jax.tree.leaves(sets, is_leaf=_is_part)
    if not any(isinstance(leaf, Constraint) for leaf in leaves) or not all(map(_is_part, leaves)):
        raise ValueError(
            f"`sets` of product must be a tree of sets such as box(...), or None for a free part. Got {sets!r}."
        )
    return Product(sets)
