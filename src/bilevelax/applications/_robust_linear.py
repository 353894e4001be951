r"""What a rule with linear scores costs when the law of the rows may be another: exact, one number per rule.

A score s = w a + b of a row moved by N(0, eps I) is N(s, eps |w|^2), whatever the number of columns: every expectation
below has one dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bilevelax.core.problem import X

NODES = 32  # of an integral over one normal variable
WIDE = 6.0  # standard deviations on both sides of what counts
ROOM = 0.99  # of |w|^2 / lam, beyond which the cost goes on along its tangent


class Loss(NamedTuple):
    """A loss l(score, label), convex in the score."""

    of: Callable[[jax.Array, jax.Array], jax.Array]
    steepest: float  # bound of |dl/ds|; inf where there is none


class Rows(NamedTuple):
    """Rows a with labels and weights that add up to one."""

    a: Any
    label: Any
    weight: Any


def logistic(score: jax.Array, label: jax.Array) -> jax.Array:
    """log(1 + exp(-label score)) for a label of -1 or 1."""
    return jax.nn.softplus(-label * score)


def squared(score: jax.Array, label: jax.Array) -> jax.Array:
    """(label - score)^2 / 2."""
    return (label - score) ** 2 / 2


LOSSES = {"logistic": Loss(logistic, 1.0), "squared": Loss(squared, jnp.inf)}


def rule(d: int) -> X:
    """The rule of score 0."""
    return {"w": jnp.zeros(d, float), "b": jnp.zeros((), float)}


def length(w: jax.Array) -> jax.Array:
    """|w|, with a derivative at 0."""
    return jnp.sqrt(jnp.sum(w**2) + 1e-12)


def scores(x: X, a: jax.Array) -> jax.Array:
    return a @ x["w"] + x["b"]


def empirical(x: X, rows: Rows, alpha: Any, loss: str) -> jax.Array:
    """The mean loss and alpha / 2 |w|^2: no ambiguity."""
    return jnp.sum(rows.weight * LOSSES[loss].of(scores(x, rows.a), rows.label)) + alpha * jnp.sum(x["w"] ** 2) / 2


def wasserstein(x: X, rows: Rows, radius: Any, loss: str) -> jax.Array:
    r"""The worst mean loss over laws whose features are at most ``radius`` away, in the Euclidean norm.

    logistic: E l + radius |w| at distance W_1 (Shafieezadeh-Abadeh, Kuhn and Mohajerin Esfahani 2019: the loss is
    convex and has slope 1 at its end). squared: (sqrt(E 2 l) + radius |w|)^2 / 2 at W_2 (Blanchet, Kang, Murthy 2019).
    """
    mean = empirical(x, rows, 0.0, loss)
    if loss == "logistic":
        return mean + radius * length(x["w"])
    return (jnp.sqrt(2 * mean + 1e-24) + radius * length(x["w"])) ** 2 / 2


def sinkhorn(x: X, rows: Rows, lam: Any, eps: Any, loss: str) -> jax.Array:
    """lam eps E_xi log E_{eta|xi} exp(l / (lam eps)), eta ~ N(xi, eps I); in logarithms, so that nothing overflows."""
    s, tau = scores(x, rows.a), lam * eps
    if loss == "squared":
        q = jnp.sum(x["w"] ** 2) / lam
        inverse, log = _beyond(q, lambda q: 1 / (1 - q)), _beyond(q, lambda q: -jnp.log1p(-q))
        return jnp.sum(rows.weight * LOSSES[loss].of(s, rows.label)) * inverse + tau / 2 * log * jnp.sum(rows.weight)
    spread = jnp.sqrt(eps) * length(x["w"])
    tilt = LOSSES[loss].steepest * spread / tau  # the exponentials move the normal variable by at most so much
    z = jnp.linspace(-1.0, 1.0, NODES) * (WIDE + tilt / 2) - tilt / 2  # trapezoids: errors fall exponentially
    density = jax.nn.log_softmax(-(z**2) / 2)
    values = LOSSES[loss].of((s * rows.label)[:, None] + spread * z[None, :], jnp.ones((1, 1), s.dtype))
    return jnp.sum(rows.weight * tau * jax.nn.logsumexp(values / tau + density[None, :], axis=1))


def _beyond(q: jax.Array, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """A convex function with a pole at 1; from `ROOM` on its tangent, so that line searches come back."""
    inside = jnp.minimum(q, ROOM)
    slope = jax.grad(function)(jnp.asarray(ROOM, q.dtype))
    return function(inside) + slope * (q - inside)
