"""Stochastic bilevel (SBO), conditional stochastic (CSO) and plain stochastic optimization as Problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from optax import tree

from bilevelax.core.inverse import neumann, none
from bilevelax.core.problem import Key, Problem, PyTree, X, Xi, Y
from bilevelax.problems.lower import averaged_step, frozen


def stochastic_bilevel(
    f: Callable[[X, Y, Xi], jax.Array],
    g: Callable[[X, Y, Any], jax.Array],
    sample_upper: Callable[[Key, PyTree], Xi],
    sample_lower: Callable[[Key, PyTree], Any],
    init_y: Callable[[X], Y],
    data: PyTree = (),
    mu_g: float | None = None,
    L_g1: float | None = None,
) -> Problem:
    """SBO: min_x E f(x, y*(x), xi) with y*(x) = argmin_y E g(x, y, eta); xi and eta are independent."""
    return Problem(
        f=lambda x, y, eta, xi: f(x, y, xi),
        g=lambda x, y, eta, xi: g(x, y, eta),
        sample_context=sample_upper,
        sample_conditional=lambda key, xi, data: sample_lower(key, data),
        init_y=lambda x, xi: init_y(x),
        data=data,
        mu_g=mu_g,
        L_g1=L_g1,
    )


def conditional_stochastic(
    phi: Callable[[X, Y, Xi], jax.Array],
    h: Callable[[X, Any, Xi], Y],
    sample_context: Callable[[Key, PyTree], Xi],
    sample_conditional: Callable[[Key, Xi, PyTree], Any],
    data: PyTree = (),
    init_y: Callable[[X, Xi], Y] | None = None,
) -> Problem:
    """CSO: min_x E_xi phi(x, E_{eta|xi} h(x, eta, xi), xi).

    The lower level is half the square of y - h, whose minimiser is a mean and whose Hessian is the
    identity. Both shortcuts are taken: sample means instead of SGD steps, and no Neumann series.
    ``init_y`` is a guess of the mean (zero by default), where the first term of RT-MLMC sits.
    """
    spec = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), data)

    def zeros(x: X, xi: Xi) -> Y:
        draw = lambda key, data: h(x, sample_conditional(key, xi, data), xi)
        shapes = jax.eval_shape(draw, jax.eval_shape(lambda: random.key(0)), spec)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    return Problem(
        f=lambda x, y, eta, xi: phi(x, y, xi),
        g=lambda x, y, eta, xi: tree.norm(tree.sub(y, h(x, eta, xi)), squared=True) / 2,
        sample_context=sample_context,
        sample_conditional=sample_conditional,
        init_y=init_y or zeros,
        data=data,
        mu_g=1.0,
        L_g1=1.0,
        lower=averaged_step(1.0),
        inverse=neumann(N=1, scale=1.0),  # exact for Hessian I
    )


def stochastic(f: Callable[[X, Xi], jax.Array], sample: Callable[[Key, PyTree], Xi], data: PyTree = ()) -> Problem:
    """Plain stochastic optimization, min_x E f(x, xi): on it RT-MLMC is SGD, bit for bit."""
    return Problem(
        f=lambda x, y, eta, xi: f(x, xi),
        g=lambda x, y, eta, xi: y**2 / 2,
        sample_context=sample,
        sample_conditional=lambda key, xi, data: (),
        init_y=lambda x, xi: jnp.zeros(()),
        data=data,
        mu_g=1.0,
        L_g1=1.0,
        lower=frozen(),
        inverse=none(),
    )
