"""Decision rules pi_x: networks from a context to orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random

from bilevelax.applications.newsvendor.loss import SMOOTHING
from bilevelax.applications.newsvendor.soft_forest import soft_forest
from bilevelax.applications.newsvendor.stored_rules import WIDTH
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_choice, require_integer
from bilevelax.core.problem import Key, PyTree

FIRST = 0.1  # of `started_small`; chosen on other instances of the published task than those of the table

# (number of columns, number of outputs, key) -> module: (columns,) -> (outputs,)
Factory = Callable[[int, int, Key], Any]


def linear(columns: int, outputs: int, key: Key) -> Any:
    """An affine rule that starts at zero: the mean demand for every context."""
    return jax.tree.map(jnp.zeros_like, eqx.nn.Linear(columns, outputs, key=key))


def mlp(columns: int, outputs: int, key: Key, width: int = WIDTH) -> Any:
    """Two hidden layers of smooth units beside an affine path."""
    key_a, key_b, key_c, key_d = random.split(key, 4)
    return Residual(
        linear(columns, outputs, key_d),
        eqx.nn.Linear(columns, width, key=key_a),
        eqx.nn.Linear(width, width, key=key_b),
        jax.tree.map(lambda a: 0.1 * a, eqx.nn.Linear(width, outputs, key=key_c)),
    )


def started_small(rules: Any) -> Any:
    """Rules of `mlp` whose first layer sees nearly nothing at the start.

    Its weights then grow along the directions that costs ask for, instead of staying near those that were drawn: what
    a network needs where demand depends on one direction of many columns.
    """
    return eqx.tree_at(lambda rule: rule.first.weight, rules, FIRST * rules.first.weight)


class Residual(eqx.Module):
    """affine(z) + last(act(hidden(act(first(z)))))."""

    affine: eqx.nn.Linear
    first: eqx.nn.Linear
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, z: jax.Array) -> jax.Array:
        a = jax.nn.silu(self.hidden(jax.nn.silu(self.first(z))))
        return self.affine(z) + self.last(a)


NAMED: dict[str, Factory] = {"linear": linear, "mlp": mlp, "soft_forest": soft_forest}


def make_policy(choice: Any, owner: str) -> Factory:
    """The named rule, or the user's own factory."""
    if isinstance(choice, str):
        require_choice("policy", owner, choice, tuple(NAMED))
        return NAMED[choice]
    if not callable(choice):
        raise ValueError(
            f"`policy` of {owner} must be {', '.join(map(repr, NAMED))} or a function (columns, outputs, key) -> "
            f"equinox module. Got {choice!r}."
        )
    return choice


def cached_by_structure(make: Callable[..., Any]) -> Any:
    """Remember make(tree, ...) for equal trees, so that nothing is compiled twice; unhashable ones are made anew."""

    @lru_cache(maxsize=256)
    def made(leaves: tuple[Any, ...], structure: Any, *rest: Any) -> Any:
        return make(jax.tree.unflatten(structure, leaves), *rest)

    def call(tree: PyTree, *rest: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        try:
            return made(tuple(leaves), structure, *rest)
        except TypeError:
            return make(tree, *rest)

    call.cache_info = made.cache_info  # type: ignore[attr-defined]
    return call


def members_of(factory: Factory, columns: int, outputs: int, members: int, seed: int) -> tuple[PyTree, Any]:
    """(stacked arrays of ``members`` independent rules, what they share): x and its static part."""
    return _members_of(factory, columns, outputs, members, seed, jnp.result_type(float))


@cached_by_structure
def _members_of(factory: Factory, columns: int, outputs: int, members: int, seed: int, _: Any) -> tuple[PyTree, Any]:
    if factory in NAMED.values():  # one program; outside of one, every operation is compiled by itself
        return drawn_together(factory, columns, outputs, members, seed), shape_of_members(factory, columns, outputs)[1]
    key = random.fold_in(random.key(seed), 2**31)
    made = [factory(columns, outputs, random.fold_in(key, i)) for i in range(members)]
    parts = [eqx.partition(rule, eqx.is_inexact_array) for rule in made]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(arrays for arrays, _ in parts)), parts[0][1]


def drawn_together(factory: Factory, columns: int, outputs: int, members: int, seed: int) -> PyTree:
    """The stacked arrays of rules whose factory can be traced."""

    def draw(seed: jax.Array) -> PyTree:
        key = random.fold_in(random.key(seed), 2**31)
        one = lambda i: eqx.filter(factory(columns, outputs, random.fold_in(key, i)), eqx.is_inexact_array)
        return jax.vmap(one)(jnp.arange(members, dtype=jnp.uint32))

    return program("at once")(draw)(jnp.uint32(seed))


def shape_of_members(factory: Factory, columns: int, outputs: int) -> tuple[Any, Any]:
    """(structure of their arrays, what they share), without drawing any: nothing is compiled.

    The factory's arrays must all be of floats, as those of the rules here are.
    """
    key = jax.eval_shape(lambda: random.key(0))
    made = eqx.filter_eval_shape(lambda key: factory(columns, outputs, key), key)
    arrays, static = eqx.partition(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    return jax.tree.structure(arrays), static


def nonlinearity(name: str, owner: str, beta: float = SMOOTHING) -> Callable[[jax.Array], jax.Array]:
    """softplus(beta .)/beta and tanh are smooth; relu is outside the theory: its Hessian misses the kinks."""
    choices: dict[str, Callable[[jax.Array], jax.Array]] = {
        "softplus": lambda z: jax.nn.softplus(beta * z) / beta,
        "tanh": jnp.tanh,
        "relu": jax.nn.relu,
    }
    require_choice("activation", owner, name, tuple(choices))
    return choices[name]


def network(d: int, widths: tuple[int, ...], act: Callable[[jax.Array], jax.Array], key: Key, owner: str) -> Any:
    """R^d -> R with these hidden widths (none: affine), weights and biases U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    require_integer("d", owner, d, 1)
    if not all(isinstance(width, int) and width >= 1 for width in widths):
        raise ValueError(f"`widths` of {owner} must be positive integers, e.g. (64, 32). Got {widths!r}.")
    layers: list[Any] = []
    for i, width in enumerate(widths):
        layers += [eqx.nn.Linear(d, width, key=random.fold_in(key, i)), eqx.nn.Lambda(act)]
        d = width
    return eqx.nn.Sequential([*layers, eqx.nn.Linear(d, "scalar", key=random.fold_in(key, len(widths)))])
