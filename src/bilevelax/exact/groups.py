"""Loops over many contexts in groups that fit the processor's cache, instead of all contexts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

CACHE = 2**20  # bytes that a group may touch again and again
Arrays = Sequence[jax.Array]
Result = TypeVar("Result")


def in_groups(function: Callable[[], Result], lane: int) -> Result:
    """``function()``, which vmap runs group after group; it works with about ``lane`` bytes for each context.

    Under vmap, loops go on until the last context has ended, and every step reads the arrays of all of them from
    memory. In groups, both end with the group. What is computed for a context is the same. On other devices than
    CPU all contexts stay together.
    """
    if jax.default_backend() != "cpu":
        return function()
    traced, shapes = jax.make_jaxpr(function, return_shape=True)()
    run = _grouped(lambda *held: jax.core.eval_jaxpr(traced.jaxpr, held), max(1, CACHE // lane))
    return jax.tree.unflatten(jax.tree.structure(shapes), run(*traced.consts))


def _grouped(function: Callable[..., Arrays], most: int) -> Callable[..., Arrays]:
    """The same function of arrays, which vmap runs for at most so many lanes at once."""
    call = jax.custom_batching.custom_vmap(function)

    @call.def_vmap
    def rule(size: int, batched: Sequence[bool], *args: jax.Array) -> tuple[Arrays, list[bool]]:
        together = lambda n: jax.vmap(function, in_axes=[0 if b else None for b in batched], axis_size=n)
        groups = -(-size // most)
        each = -(-size // groups)
        order = jnp.minimum(jnp.arange(groups * each, dtype=jnp.int32), size - 1).reshape(groups, each)

        def one_by_one(*args: jax.Array) -> Arrays:
            pick = lambda rows: [a[rows] if b else a for a, b in zip(args, batched, strict=True)]
            found = lax.map(lambda rows: together(each)(*pick(rows)), order)
            return [a.reshape(-1, *a.shape[2:])[:size] for a in found]

        # vmaps further outside find what is left of the room: several such lanes at once, or one after another
        found = _grouped(together(size), most // size)(*args) if groups == 1 else _grouped(one_by_one, 1)(*args)
        return found, [True] * len(found)

    return call
