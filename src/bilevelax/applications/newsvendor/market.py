"""The paper's market: where contexts and demands come from, and what a rule costs there.

Contexts are uniform on [-15, 15]^100, demand is 10 sigmoid(3-layer ReLU network of xi) + N(0, 1). One deviation: the
paper draws the network's weights by `torch.nn.init.uniform_`, whose range [0, 1] saturates the sigmoid and makes demand
constant; here they are U(-1/sqrt(fan_in), 1/sqrt(fan_in)). The paper gives no layer widths, h or b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.applications.newsvendor.loss import loss
from bilevelax.applications.newsvendor.policies import network
from bilevelax.base.compiling import program
from bilevelax.core.problem import Key

PAID_AT_ONCE = 10_000  # test points made and paid at once
TRUTH = (64, 32)  # hidden widths of the network behind demand


class Market(NamedTuple):
    """Where contexts and demands come from, and what a wrong order costs."""

    truth: Any  # a network
    d: int
    scale: float
    h: float
    b: float

    def contexts(self, key: Key, n: int) -> jax.Array:
        return random.uniform(key, (n, self.d), float, -self.scale, self.scale)

    def means(self, contexts: jax.Array) -> jax.Array:
        """The mean demand of each context."""
        return 10 * jax.nn.sigmoid(jax.vmap(self.truth)(contexts))

    def demands(self, key: Key, contexts: jax.Array, m: int) -> jax.Array:
        """m demands for each context."""
        means = self.means(contexts)
        return means[:, None] + random.normal(key, (len(contexts), m), means.dtype)


def market_of(key: Key, d: int, scale: float, h: float, b: float, owner: str) -> Market:
    """A market whose network is drawn with this key."""
    return Market(network(d, TRUTH, jax.nn.relu, key, owner), d, scale, h, b)


def compiled(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`program` for arguments that hold modules: their arrays are traced, all else is static."""

    @program(static_argnames="static")
    def of_arrays(arrays: Any, static: Any) -> jax.Array:
        return function(*eqx.combine(arrays, static))

    return lambda *args: of_arrays(*eqx.partition(args, eqx.is_array))


@compiled
def fresh_cost(rule: Any, market: Market, key: Key, points: int) -> jax.Array:
    """Mean unsmoothed loss on fresh pairs (xi, eta), made in chunks: no test set is stored."""
    chunks = -(-points // PAID_AT_ONCE)

    def one(i: jax.Array) -> jax.Array:
        key_xi, key_eta = random.split(random.fold_in(key, i))
        contexts = market.contexts(key_xi, -(-points // chunks))
        demands = market.demands(key_eta, contexts, 1)[:, 0]
        return loss(jax.vmap(rule)(contexts), demands, market.h, market.b).mean()

    return lax.map(one, jnp.arange(chunks)).mean()


@compiled
def stored_cost(rule: Any, market: Market, data: Any) -> jax.Array:
    """Mean unsmoothed loss on the stored pairs."""
    return loss(jax.vmap(rule)(data.contexts)[:, None], data.outcomes, market.h, market.b).mean()
