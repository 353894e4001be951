"""The problem sizes of the paper's two experiments, and a small one with continuous contexts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import random

import bilevelax as bx
from bilevelax.applications import Application, meta_learning, wdro_si


def meta(d: int = 512, images: int = 500) -> Application:
    """Meta-learning: 20 tasks of 10 classes, 4,500 training images a task, one sample per draw, lam = 2, norm 5."""
    return meta_learning.make(d=d, images=images, batch=1, lam=2.0, norm=5.0)


def newsvendor() -> Application:
    """WDRO-SI: 100 covariates, a network rule, 50 contexts of 100 demands, with the implicit term."""
    return wdro_si.make(danskin=False)


def leader_follower() -> Application:
    """A follower's smoothed newsvendor in R^4 with continuous contexts; mu = 0.3, L = 5.3."""

    def loss(w: jax.Array, eta: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softplus(5 * (w - eta)) + 3 * jax.nn.softplus(5 * (eta - w))) / 5

    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - eta) ** 2) / 2 + 0.1 * jnp.sum(x**2),
        g=lambda x, y, eta, xi: loss(y, eta) + x @ y + 0.15 * jnp.sum(y**2),
        sample_context=lambda key, data: random.normal(key, (4,)),
        sample_conditional=lambda key, xi, data: 2 + jnp.tanh(xi) + 0.5 * random.normal(key, (4,)),
        init_y=lambda x, xi: 2 + jnp.tanh(xi),
        mu_g=0.3,
        L_g1=5.3,
    )
    return Application(problem, 0.1 * jnp.ones(4), lambda x: {})
