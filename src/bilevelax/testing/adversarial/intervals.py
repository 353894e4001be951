"""Contexts for which an interval of |grad F| may or may not be given; a bias that only the result shows."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random

import bilevelax as bx
from bilevelax.testing.adversarial.case import KEY, Case

# Laws of a context with mean zero, by number: one program certifies them all
LAWS = {
    "normal": lambda key: random.normal(key, ()),
    "exponential": lambda key: random.exponential(key, ()) - 1.0,
    "uniform": lambda key: random.uniform(key, (), minval=-1.0, maxval=1.0),
    "one in twenty": lambda key: jnp.where(random.uniform(key) < 0.05, 19.0, -1.0),
    "lognormal": lambda key: jnp.exp(2 * random.normal(key, ())) - np.exp(2.0),
    "rare, one in 1,000": lambda key: jnp.where(random.uniform(key) < 1e-3, 999.0, -1.0),
    "rare among others": lambda key: random.normal(key, ()) + jnp.where(random.uniform(key) < 1e-3, 1000.0, 0.0),
}
HEAVY = ("lognormal", "rare, one in 1,000", "rare among others")


@functools.cache
def of_laws() -> bx.Problem:
    """F(x) = E (x - xi)^2 / 2 by a follower y* = x; the law of xi is data."""

    def sample_context(key: Any, data: Any) -> Any:
        return lax.switch(data, [lambda key, law=law: law(key).astype(float) for law in LAWS.values()], key)[None]

    return bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2) / 2,
        sample_context=sample_context,
        sample_conditional=lambda key, xi, data: random.normal(key, (1,)) / 10,
        init_y=lambda x, xi: jnp.zeros(1, x.dtype),
        data=jnp.zeros((), jnp.int32),
    )


def with_law(name: str) -> bx.Problem:
    return of_laws().replace(data=jnp.asarray(list(LAWS).index(name), jnp.int32))


@functools.cache
def quick() -> bx.Estimator:
    return bx.saa(2)


def certificate(name: str, seed: int = 0) -> bx.Certificate:
    return bx.certify(with_law(name), jnp.ones(1), key=KEY(seed), estimator=quick())


def instrument(weak: float = 0.5) -> bx.Problem:
    """Y = 1000 + 2 T + e with e and T confounded; z moves T only. min over (a, b) of E_z (E[Y - a - b T | z])^2 / 2.

    The average of n samples adds Var(Y - b T) / n to the square: 1000 hides that at x1, nothing does at the result.
    """

    def sample_conditional(key: Any, xi: Any, data: Any) -> Any:
        u, v = random.normal(key, (2,))
        T = weak * xi[0] + u
        return jnp.stack([T, 1000 + 2 * T + 3 * u + jnp.sin(3 * xi[0]) + v / 2])

    return bx.conditional_stochastic(
        lambda x, y, xi: jnp.sum(y**2) / 2,
        lambda x, eta, xi: (eta[1] - x[0] - x[1] * eta[0])[None],
        sample_context=lambda key, data: random.normal(key, (1,)),
        sample_conditional=sample_conditional,
    )


def hidden_bias(estimator: Any, **settings: Any) -> Any:
    """A run on `instrument`, looked at where it ends."""
    given = {"key": KEY(0), "T": 64, "every": 16, "progress": False, "recheck": True, **settings}
    return bx.minimize(instrument(), estimator, optax.sgd(0.5), jnp.zeros(2), **given)


def told(result: Any) -> str:
    return f"b = {float(result.x[1]):.2f}, told: {result.recheck['told']}"


def of_law(name: str) -> Case:
    none, some = "effective ones, tail index .* no interval", "95 % interval"
    says, never = (none, some) if name in HEAVY else (some, none)
    return Case(f"certify, {name} contexts", lambda: certificate(name), says, never)


def rare_in_solve() -> str:
    """One context in 10,000 that counts 10,000: grad F = x - 1, and samples of hundreds hold none of them."""
    problem = of_laws().replace(
        sample_context=lambda key, data: jnp.where(random.uniform(key) < 1e-4, 1e4, 0.0)[None],
        data=jnp.zeros(()),
    )
    found = bx.solve(problem, jnp.full(1, 0.3), key=KEY(1), atol=0.05, budget_seconds=60.0, progress=False)
    right = abs(float(found.x[0]) - 1) <= found.certificate.norm_high
    return f"{'true' if right else 'false'}: {found.why} {found.certificate}"


INTERVALS = (
    *map(of_law, LAWS),
    Case("solve, rare contexts", rare_in_solve, "^true: .*no interval", "Certified", slow=True),
    Case(
        "a bias that x1 hides, saa(8)",
        lambda: told(hidden_bias(bx.minibatch(bx.saa(8), 32))),
        "warned: Where the run ended the bias of the estimator is .*antithetic_mlmc",
        slow=True,
    ),
    Case(
        "the same without bias",
        lambda: told(hidden_bias(bx.minibatch(bx.antithetic_mlmc(32, 2, 0.05), 256))),
        r"^b = (1\.[789]|2\.[012])\d, told: \[\]$",
        never="warned",
        slow=True,
    ),
)
