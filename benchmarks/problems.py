"""The problem sizes of the paper's two experiments, and a small one with continuous contexts."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax, random

import bilevelax as bx
from bilevelax.applications import Application, meta_learning, personalized_fl, wdro_si


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


def client_tasks(clients: int) -> Application:
    """Clients of 8 to 30 rows, 16 features, 5 classes; the follower adapts the leader's softmax regression."""
    return personalized_fl.make(clients=clients, classes=5, d=16, least=8, most=30)


def simulated_demand(days: int = 200) -> Application:
    """`leader_follower` whose every demand is the end of a simulated path: a draw costs far more than a gradient."""
    app = leader_follower()

    def sample_conditional(key: jax.Array, xi: jax.Array, data: tuple[()]) -> jax.Array:
        def day(t: jax.Array, level: jax.Array) -> jax.Array:
            return 0.95 * level + 0.156 * random.normal(random.fold_in(key, t), (4,))

        return 2 + jnp.tanh(xi) + lax.fori_loop(0, days, day, jnp.zeros(4))

    problem = dataclasses.replace(app.problem, sample_conditional=sample_conditional)
    return Application(problem, app.x1, app.metrics)
