r"""The entropic causal adversary: a Sinkhorn ball around the contexts, a conditional stochastic problem.

The adversary moves a context before demand is known, as in eq. (10), but with noise that it may only tilt:

.. math::
    \min_x E_\xi \frac1a \log E_{z|\xi} e^{a c(x, z; \xi)}, \quad z = \xi + s \circ N(0, I), \quad
    c(x, z; \xi) = E_{\eta|\xi} l_\beta(\pi_x(z), \eta), \quad a = 1 / (2 \lambda s^2)

the dual of a ball of the Sinkhorn distance with the regularisation 2 s^2 of the squared way. s to 0 gives the
Wasserstein adversary of eq. (11) with the same lambda; lambda = inf (a = 0) is the mean over the noise. The lower level
is a mean, u* = E phi_a(c - c_0) with phi_a(t) = (e^{at} - 1) / a and c_0 the cost at the unmoved context, found exactly
in one step; with w = c_0 + log(1 + a u) / a

.. math::
    f = w + \phi_a(c - w), \qquad g = (u - \phi_a(c - c_0))^2 / 2

The mean of grad_2 f vanishes at u*, so that Danskin's theorem applies here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random

from bilevelax.applications.newsvendor.adversary import Losses, of_members
from bilevelax.applications.newsvendor.policies import cached_by_structure
from bilevelax.applications.newsvendor.rows import Context, Rows, cost_of, sample_context
from bilevelax.core.inverse import none
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.problems.lower import averaged_step

LARGEST = 50.0  # exponent: beyond it a single draw decides anyway, and single precision ends
FLAT = 1e-4  # a below this counts as 0


class Draw(NamedTuple):
    """All demands of a row (outputs, m), and one noise."""

    demands: Any
    noise: jax.Array


def phi(a: Any, t: Any) -> jax.Array:
    """(e^{at} - 1) / a, and t where a is 0."""
    some = jnp.where(a > FLAT, a, 1.0)
    return jnp.where(a > FLAT, jnp.expm1(jnp.minimum(some * t, LARGEST)) / some, t)


def inverse_phi(a: Any, u: Any) -> jax.Array:
    """log(1 + a u) / a, and u where a is 0."""
    some = jnp.where(a > FLAT, a, 1.0)
    return jnp.where(a > FLAT, jnp.log1p(jnp.maximum(some * u, jnp.finfo(float).eps - 1)) / some, u)


def entropic_losses(cost: Callable[[X, Any, Any, Any], jax.Array]) -> Losses:
    """f and g above, of a cost (x, z, demands, xi) that is a mean over the demands given."""

    def at(x: X, eta: Draw, xi: Context) -> tuple[jax.Array, jax.Array]:
        return cost(x, xi.value, eta.demands, xi), cost(x, xi.value + xi.reach * eta.noise, eta.demands, xi)

    def f(x: X, u: jax.Array, eta: Draw, xi: Context) -> jax.Array:
        unmoved, moved = at(x, eta, xi)
        w = unmoved + inverse_phi(xi.tilt, u)
        return w + phi(xi.tilt, moved - w)

    def g(x: X, u: jax.Array, eta: Draw, xi: Context) -> jax.Array:
        unmoved, moved = at(x, eta, xi)
        return (u - phi(xi.tilt, moved - unmoved)) ** 2 / 2

    return Losses(f, g, lambda x, xi: jnp.zeros((), xi.value.dtype))


@cached_by_structure
def losses_of(static: PyTree, beta: float) -> Losses:
    """Of stacked rules of one structure, as `rows.losses_of`."""
    return of_members(entropic_losses(cost_of(static, beta)))


def sample_draw(key: Key, xi: Context, data: Rows) -> Draw:
    return Draw(data.atoms[xi.row, 0], random.normal(key, xi.value.shape, xi.value.dtype))


LOWER = averaged_step(1.0)
INVERSE = none()


def entropic_problem(losses: Losses, rows: Rows) -> Problem:
    """On rows whose demands lie together, one outcome a row: the adversary must not see them one by one."""
    return Problem(
        **losses._asdict(),
        sample_context=sample_context,
        sample_conditional=sample_draw,
        data=jax.tree.map(jnp.asarray, rows),
        lower=LOWER,
        inverse=INVERSE,
        mu_g=1.0,
        L_g1=1.0,
    )
