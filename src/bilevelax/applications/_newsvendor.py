"""The newsvendor's loss, its smoothing, its oracle, and networks for orders and demands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random
from jax.scipy.stats import norm

from bilevelax.errors import require_choice, require_integer, require_positive
from bilevelax.problem import Key

SMOOTHING = 5.0  # the paper's beta


def loss(w: Any, eta: Any, h: float, b: float) -> jax.Array:
    """l(w, eta) = h (w - eta)^+ + b (eta - w)^+."""
    return h * jax.nn.relu(w - eta) + b * jax.nn.relu(eta - w)


def smooth_loss(w: Any, eta: Any, h: float, b: float, beta: float) -> jax.Array:
    """l_beta, with softplus(beta .)/beta for (.)^+; its second derivative is at most (h + b) beta / 4."""
    return (h * jax.nn.softplus(beta * (w - eta)) + b * jax.nn.softplus(beta * (eta - w))) / beta


def oracle_cost(h: float, b: float, sigma: float = 1.0) -> float:
    """Cost of the best order for normal demand with known mean: (h + b) sigma phi(Phi^-1(b / (h + b)))."""
    return float((h + b) * sigma * norm.pdf(norm.ppf(b / (h + b))))


def expected_loss(w: Any, mean: Any, h: float, b: float) -> jax.Array:
    """E l(w, eta) for eta ~ N(mean, 1): (h + b) (z Phi(z) + phi(z)) - b z with z = w - mean."""
    z = w - mean
    return (h + b) * (z * norm.cdf(z) + norm.pdf(z)) - b * z


def nonlinearity(name: str, owner: str, beta: float = SMOOTHING) -> Callable[[jax.Array], jax.Array]:
    """softplus(beta .)/beta and tanh are smooth; relu is outside the theory: its Hessian misses the kinks."""
    choices: dict[str, Callable[[jax.Array], jax.Array]] = {
        "softplus": lambda z: jax.nn.softplus(beta * z) / beta,
        "tanh": jnp.tanh,
        "relu": jax.nn.relu,
    }
    require_choice("activation", owner, name, tuple(choices))
    return choices[name]


def network(d: int, widths: tuple[int, ...], act: Callable[[jax.Array], jax.Array], key: Key, owner: str) -> Any:
    """R^d -> R with these hidden widths (none: affine), weights and biases U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    require_integer("d", owner, d, 1)
    if not all(isinstance(width, int) and width >= 1 for width in widths):
        raise ValueError(f"`widths` of {owner} must be positive integers, e.g. (64, 32). Got {widths!r}.")
    layers: list[Any] = []
    for i, width in enumerate(widths):
        layers += [eqx.nn.Linear(d, width, key=random.fold_in(key, i)), eqx.nn.Lambda(act)]
        d = width
    return eqx.nn.Sequential([*layers, eqx.nn.Linear(d, "scalar", key=random.fold_in(key, len(widths)))])


def require_costs(owner: str, h: float, b: float, beta: float) -> None:
    for name, value in (("h", h), ("b", b), ("beta", beta)):
        require_positive(name, owner, value)
