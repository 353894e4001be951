r"""
Instrumental variables: what does a price do to demand?
=======================================================

Prices follow demand shocks that nobody recorded, so the regression of demand on price is wrong. An instrument z, the
cost of a raw material, moves the price and nothing else. The right curve h satisfies :math:`E[q - h(p) \mid z] = 0` for
every z: the follower learns :math:`y^*(x; z) = E[h_x(p) \mid z]`, the leader fits it to the quantities. Squaring an
average of few draws is biased; ``solve`` removes that bias and certifies its answer.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.report.curves import LINE_COLOURS


def demand(p):
    return 2 - p + 0.5 * jnp.tanh(2 * p)


def draw(key, z):
    """(price, quantity) where the instrument is z: the shock moves both."""
    shock, noise = random.normal(key, (2,))
    p = z + 0.7 * shock + 0.3 * noise
    return p, demand(p) + shock


def curve(x, p):
    """A flexible curve: 1, p, and three steps."""
    return x[0] + x[1] * p + jnp.tanh(2 * (p - jnp.asarray([-1.0, 0.0, 1.0]))) @ x[2:]


problem = bx.Problem(
    f=lambda x, y, eta, z: (y - eta[1]) ** 2 / 2 + 5e-4 * jnp.sum(x**2),
    g=lambda x, y, eta, z: (y - curve(x, eta[0])) ** 2 / 2,
    sample_context=lambda key, data: random.uniform(key, minval=-2.0, maxval=2.0),
    sample_conditional=lambda key, z, data: draw(key, z),
    init_y=lambda x, z: jnp.zeros(()),
    mu_g=1.0,
    L_g1=1.0,
)
found = bx.solve(problem, jnp.zeros(5), key=random.key(0), tol=0.05, progress=False)
print(found.why)
print(bx.evaluate(problem, found.x, key=random.key(1), samples=32))

p, q = map(np.asarray, jax.vmap(draw)(random.split(random.key(2), 400), jnp.linspace(-2, 2, 400)))
features = np.stack([np.ones_like(p), p, *(np.tanh(2 * (p - c)) for c in (-1.0, 0.0, 1.0))], 1)
regression = np.linalg.lstsq(features, q, rcond=None)[0]

at = np.linspace(-2, 2, 81)
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
axes.plot(p, q, ".", color="0.75", markersize=3, zorder=0)
axes.plot(at, demand(at), color="black", label="what a price does")
for colour, x, name in zip(LINE_COLOURS, (found.x, regression), ("instrument", "plain regression"), strict=False):
    values = np.asarray(jax.vmap(curve, (None, 0))(jnp.asarray(x), jnp.asarray(at)))
    axes.plot(at, values, color=colour, label=name)
    print(f"{name}: off by {np.sqrt(np.mean((values - demand(at)) ** 2)):.2f}")
axes.set(xlabel="price", ylabel="quantity")
axes.legend(frameon=False)
plt.show()
