"""Three ways to learn an order from side information, as settings of existing parts.

With l_beta the smoothed loss and pi_x the decision rule:

- ``wdro_si``, eq. (10)-(11): the adversary moves the context before it sees the demand,
  E_xi max_y E_{eta|xi} [l_beta(pi_x(y), eta) - lam |y - xi|^2];
- ``wdro``, Algorithm 5: it moves the context of each single pair (xi, eta), demand seen, so its
  value is never below that of ``wdro_si``;
- ``erm``: nobody moves anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import random

from bilevelax.applications.newsvendor.adversary import Moves, losses_of
from bilevelax.core.inverse import none
from bilevelax.core.problem import Key, Problem, X
from bilevelax.problems.lower import optax_steps
from bilevelax.problems.special_cases import stochastic
from bilevelax.problems.stored import StoredData, from_arrays

OrderCost = Callable[[X, Any, Any], jax.Array]  # (x, context, demand) -> l_beta(pi_x(context), demand)


class Seen(NamedTuple):
    """A context together with one of its demands."""

    value: jax.Array
    eta: jax.Array


def wdro_si(cost: OrderCost, contexts: jax.Array, demands: jax.Array, lam: float, danskin: bool) -> Problem:
    """Eq. (11) on M contexts with m demands each; ``danskin`` leaves the implicit term out, which vanishes at y*."""
    moves = Moves(place=lambda y, xi: y, price=lambda y, xi: lam * ((y - xi) ** 2).sum(), start=lambda xi: xi)
    losses = losses_of(lambda x, z, eta, xi: cost(x, z, eta), moves)
    problem = from_arrays(losses.f, losses.g, contexts, demands, init_y=losses.init_y)
    return problem.replace(inverse=none()) if danskin else problem


def pairs(data: StoredData) -> int:
    """Number of stored pairs (xi, eta), m of them for each context."""
    return data.outcomes.shape[0] * data.outcomes.shape[1]


def pair_at(i: Any, data: StoredData) -> Seen:
    m = data.outcomes.shape[1]
    return Seen(data.contexts[i // m], data.outcomes[i // m, i % m])


def sample_pair(key: Key, data: StoredData) -> Seen:
    return pair_at(random.randint(key, (), 0, pairs(data)), data)


def typical_step(robust: Problem, x: X, lam: float, key: Key) -> float:
    """Root-mean-square coordinate of grad_2 g / (2 lam) at y = xi: how far the adversary wants to go."""

    def one(i: jax.Array) -> jax.Array:
        xi = robust.nth_context(i)
        return robust.grad_g(x, xi.value, robust.conditional(random.fold_in(key, i), xi), xi)

    steps = jax.vmap(one)(jnp.arange(robust.n_contexts or 0, dtype=jnp.int32)) / (2 * lam)
    return float(jnp.sqrt(jnp.mean(steps**2)))


def wdro(robust: Problem, T_in: int, inner_rate: float) -> Problem:
    """Algorithm 5 from the problem of `wdro_si`: a context is a pair (xi, eta), the inner ascent T_in steps of Adam.

    Adam's step falls linearly from ``inner_rate`` to 0, without which it keeps circling y*.
    """
    adam = optax.adam(optax.linear_schedule(inner_rate, 0.0, T_in))
    return robust.replace(
        sample_context=sample_pair,
        sample_conditional=lambda key, xi, data: xi.eta,
        n_contexts=pairs(robust.data),
        context_at=pair_at,
        support=lambda xi, data: (xi.eta[None], jnp.ones(1, float)),
        lower=optax_steps(adam, T_in),
        inverse=none(),
    )


def erm(cost: OrderCost, data: StoredData) -> Problem:
    """Plain stochastic optimization of the mean of l_beta over the stored pairs."""
    problem = stochastic(lambda x, pair: cost(x, pair.value, pair.eta), sample_pair, data)
    return problem.replace(n_contexts=pairs(data), context_at=pair_at)
