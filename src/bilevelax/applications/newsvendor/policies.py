"""Decision rules: networks from a standardised context to standardised orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random

from bilevelax.errors import require_choice
from bilevelax.problem import Key, PyTree

# (number of columns, number of outputs, key) -> module: (columns,) -> (outputs,)
Factory = Callable[[int, int, Key], Any]


def linear(columns: int, outputs: int, key: Key) -> Any:
    """An affine rule that starts at zero: the mean demand for every context."""
    return jax.tree.map(jnp.zeros_like, eqx.nn.Linear(columns, outputs, key=key))


def mlp(columns: int, outputs: int, key: Key, width: int = 32) -> Any:
    """Two hidden layers of smooth units beside an affine path."""
    key_a, key_b, key_c, key_d = random.split(key, 4)
    return Residual(
        linear(columns, outputs, key_d),
        eqx.nn.Linear(columns, width, key=key_a),
        eqx.nn.Linear(width, width, key=key_b),
        jax.tree.map(lambda a: 0.1 * a, eqx.nn.Linear(width, outputs, key=key_c)),
    )


class Residual(eqx.Module):
    """affine(z) + last(act(hidden(act(first(z)))))."""

    affine: eqx.nn.Linear
    first: eqx.nn.Linear
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, z: jax.Array) -> jax.Array:
        a = jax.nn.silu(self.hidden(jax.nn.silu(self.first(z))))
        return self.affine(z) + self.last(a)


def make_policy(choice: Any, owner: str) -> Factory:
    """The named rule, or the user's own factory."""
    if isinstance(choice, str):
        require_choice("policy", owner, choice, ("linear", "mlp"))
        return {"linear": linear, "mlp": mlp}[choice]
    if not callable(choice):
        raise ValueError(
            f"`policy` of {owner} must be 'linear', 'mlp' or a function (columns, outputs, key) -> equinox module. "
            f"Got {choice!r}."
        )
    return choice


def members_of(factory: Factory, columns: int, outputs: int, members: int, seed: int) -> tuple[PyTree, Any]:
    """(stacked arrays of ``members`` independent rules, what they share): x and its static part."""
    shape = (columns, outputs, members, seed, jnp.zeros((), float).dtype)
    try:
        return _members_of(factory, *shape)
    except TypeError:  # a factory that cannot be told apart from others is asked again
        return _members_of.__wrapped__(factory, *shape)


@lru_cache(maxsize=64)
def _members_of(factory: Factory, columns: int, outputs: int, members: int, seed: int, _: Any) -> tuple[PyTree, Any]:
    key = random.fold_in(random.key(seed), 2**31)
    made = [factory(columns, outputs, random.fold_in(key, i)) for i in range(members)]
    parts = [eqx.partition(rule, eqx.is_inexact_array) for rule in made]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(arrays for arrays, _ in parts)), parts[0][1]
