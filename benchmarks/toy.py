"""The problem of the README, which benchmarks take for a small one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import random

import bilevelax as bx


def toy() -> tuple[Any, Any]:
    """The problem of the README and its first iterate."""
    lam, order = 50.0, lambda x, xi: x["w"] @ xi + x["b"]
    loss = lambda w, eta: (jax.nn.softplus(5 * (w - eta)) + 3 * jax.nn.softplus(5 * (eta - w))) / 5
    problem = bx.Problem(
        f=lambda x, y, eta, xi: loss(order(x, y), eta) - lam * jnp.sum((y - xi) ** 2),
        g=lambda x, y, eta, xi: -loss(order(x, y), eta) + lam * jnp.sum((y - xi) ** 2),
        sample_context=lambda key, data: random.uniform(key, (3,), minval=-1.0),
        sample_conditional=lambda key, xi, data: 2 * xi[0] - xi[1] + 0.1 * random.normal(key),
        init_y=lambda x, xi: xi,
        mu_g=70.0,
        L_g1=100.0,
    )
    return problem, {"w": jnp.zeros(3), "b": jnp.zeros(())}
