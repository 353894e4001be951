"""Problems with a known conditional, so that the exact gradient is a quadrature: quadratic, softmax, newsvendor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from scipy.stats import qmc

import bilevelax as bx

NOISE = 0.5
CLASSES = 3
NODES = 48  # of Gauss and Hermite, for the mean over eta
CONTEXTS = 2**13  # of Sobol, for the mean over xi


class Case(NamedTuple):
    """A problem with a known conditional; ``atoms(xi)`` are outcomes and weights that integrate over it."""

    f: Callable[..., Any]
    g: Callable[..., Any]
    draw: Callable[[Any, Any], Any]  # (key, xi) -> eta
    atoms: Callable[[Any], tuple[Any, Any]]
    init_y: Callable[[Any, Any], Any]
    x: Any


def signal(xi: Any) -> Any:
    """What the outcome depends on: a wave along the diagonal, which no single coordinate shows, and a slope."""
    return jnp.sin(2 * jnp.sum(xi) / len(xi) ** 0.5) + xi[0] / 2


def noisy(key: Any, xi: Any) -> Any:
    return signal(xi) + NOISE * random.normal(key)


def nodes(xi: Any) -> tuple[Any, Any]:
    t, weights = np.polynomial.hermite.hermgauss(NODES)
    return signal(xi) + NOISE * jnp.asarray(np.sqrt(2) * t, float), jnp.asarray(weights / weights.sum(), float)


def pinball(y: Any, eta: Any) -> Any:
    """A smooth newsvendor: holding 1, backlog 3."""
    return (jax.nn.softplus(5 * (y - eta)) + 3 * jax.nn.softplus(5 * (eta - y))) / 5


def logits(xi: Any) -> Any:
    return signal(xi) * jnp.arange(CLASSES, dtype=float)


CASES = {
    "quadratic": Case(
        f=lambda x, y, eta, xi: (y - x[1] * xi[0]) ** 2,
        g=lambda x, y, eta, xi: (y - x[0] * eta) ** 2 / 2,
        draw=noisy,
        atoms=nodes,
        init_y=lambda x, xi: jnp.zeros(()),
        x=jnp.array([1.0, 0.5]),
    ),
    "softmax": Case(
        f=lambda x, y, eta, xi: jax.nn.logsumexp(y) - y[eta],
        g=lambda x, y, eta, xi: jax.nn.logsumexp(y) - y[eta] + jnp.exp(x[0]) * jnp.sum((y - x[1] * xi[0]) ** 2),
        draw=lambda key, xi: random.categorical(key, logits(xi)),
        atoms=lambda xi: (jnp.arange(CLASSES), jax.nn.softmax(logits(xi))),
        init_y=lambda x, xi: jnp.zeros(CLASSES),
        x=jnp.array([-1.0, 0.5]),
    ),
    "newsvendor": Case(
        f=lambda x, y, eta, xi: pinball(y, eta) + x[1] ** 2 + (y - x[1]) ** 2 / 10,
        g=lambda x, y, eta, xi: pinball(y, eta) + (y - x[0] * xi[0]) ** 2 / 5,
        draw=noisy,
        atoms=nodes,
        init_y=lambda x, xi: jnp.zeros(()),
        x=jnp.array([1.0, 0.5]),
    ),
}


def contextual(case: Case, d: int) -> bx.Problem:
    return bx.Problem(
        f=case.f,
        g=case.g,
        sample_context=lambda key, data: random.uniform(key, (d,), minval=-1.0),
        sample_conditional=lambda key, xi, data: case.draw(key, xi),
        init_y=case.init_y,
    )


def exact(case: Case, d: int) -> np.ndarray:
    """grad F at the case's x, by quadrature over eta and evenly lying contexts."""
    points = jnp.asarray(2 * qmc.Sobol(d, rng=7).random(CONTEXTS) - 1, float)
    problem = contextual(case, d).replace(
        data=points,
        sample_context=lambda key, data: data[random.randint(key, (), 0, CONTEXTS)],
        n_contexts=CONTEXTS,
        context_at=lambda i, data: data[i],
        support=lambda xi, data: case.atoms(xi),
    )
    every = bx.minibatch(bx.saa("all"), CONTEXTS, contexts="spread")
    return np.asarray(jax.jit(lambda problem: every.estimate(random.key(0), problem, case.x, ())[0].grad)(problem))


def table(case: Case, d: int, n: int, seed: int) -> tuple[Any, Any]:
    key_xi, key_eta = random.split(random.key(seed))
    xi = random.uniform(key_xi, (n, d), minval=-1.0)
    return xi, jax.vmap(case.draw)(random.split(key_eta, n), xi)
