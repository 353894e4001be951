r"""Eq. (10)-(11): an adversary moves the context before demand is known, and pays for the way.

.. math::
    \min_x E_\xi \max_z E_{\eta|\xi} [ l_\beta(\pi_x(z), \eta) - \lambda |z - \xi|^2 ]

It looks for the moved context z in a variable y of its own, which who runs the problem chooses (`Moves`): z itself, or
the way to z in units in which the problem has the same scale whatever lambda is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevelax.core.problem import Eta, X, Xi, Y

OrderCost = Callable[[X, Any, Eta, Xi], jax.Array]  # (x, z, demand, xi) -> l_beta(pi_x(z), demand)


class Moves(NamedTuple):
    """The variable y in which the adversary moves a context."""

    place: Callable[[Y, Xi], Any]  # the moved context z
    price: Callable[[Y, Xi], jax.Array]  # lambda |z - xi|^2
    start: Callable[[Xi], Y]  # the y at which nothing has moved
    scale: Callable[[Xi], Any] = lambda xi: 1.0  # by which g exceeds -f


class Losses(NamedTuple):
    """f, g and the first y of a problem."""

    f: Callable[[X, Y, Eta, Xi], jax.Array]
    g: Callable[[X, Y, Eta, Xi], jax.Array]
    init_y: Callable[[X, Xi], Y]


def losses_of(cost: OrderCost, moves: Moves) -> Losses:
    """What leader and adversary dispute, eq. (11). grad_2 f vanishes at y*: Danskin's theorem applies."""

    def f(x: X, y: Y, eta: Eta, xi: Xi) -> jax.Array:
        return cost(x, moves.place(y, xi), eta, xi) - moves.price(y, xi)

    def g(x: X, y: Y, eta: Eta, xi: Xi) -> jax.Array:
        return -moves.scale(xi) * f(x, y, eta, xi)

    return Losses(f, g, lambda x, xi: moves.start(xi))


def of_members(losses: Losses) -> Losses:
    """Of stacked rules x and answers y: each rule has its own adversary, and the losses add up."""

    def total(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda x, y, eta, xi: jnp.sum(jax.vmap(loss, in_axes=(0, 0, None, None))(x, y, eta, xi))

    return Losses(total(losses.f), total(losses.g), jax.vmap(losses.init_y, in_axes=(0, None)))
