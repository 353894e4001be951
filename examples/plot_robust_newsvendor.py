r"""
A newsvendor whose forecast of the weather may be wrong
=======================================================

Demand depends on the temperature :math:`\xi`; the order is a rule :math:`w(x; \xi)`. An adversary, the follower,
moves the temperature to :math:`y` at the price :math:`\lambda |y - \xi|^2`, and the leader chooses the rule
against it. The smaller the price, the flatter the rule: an order that leans on the weather can be hurt by it.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.report.curves import LINE_COLOURS

HOLDING, BACKLOG = 1.0, 4.0


def order(x, temperature):
    return x[0] + x[1] * temperature


def cost(w, demand):
    """The newsvendor loss, smoothed."""
    return (HOLDING * jax.nn.softplus(5 * (w - demand)) + BACKLOG * jax.nn.softplus(5 * (demand - w))) / 5


def demand(key, xi, data):
    return 5 + 2 * jnp.tanh(xi) + 1.5 * random.normal(key)


def robust(price):
    return bx.Problem(
        f=lambda x, y, eta, xi: cost(order(x, y), eta) - price * (y - xi) ** 2,
        g=lambda x, y, eta, xi: -cost(order(x, y), eta) + price * (y - xi) ** 2,
        sample_context=lambda key, data: random.normal(key),
        sample_conditional=demand,
        init_y=lambda x, xi: xi,
        inverse=bx.none(),  # f = -g: the implicit term vanishes at y*
    )


grid = jnp.linspace(-2.0, 2.0, 81)
rules = {}
for price in (100.0, 4.0, 1.5):
    problem, estimator = robust(price), bx.minibatch(bx.saa(32), 16)
    adam = optax.adam(optax.cosine_decay_schedule(0.05, 400))
    run = bx.minimize(problem, estimator, adam, jnp.array([5.0, 0.0]), key=random.key(0), T=400)
    rules[price] = order(run.x, grid)
    moved = bx.respond(problem, run.x, jnp.asarray(0.5), key=random.key(1))
    print(f"price {price:g}: x = {np.round(run.x, 2)}; the worst temperature near 0.5 is {moved:.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
left.plot(grid, 5 + 2 * np.tanh(grid), color="black", linewidth=0.8, linestyle="dashed", label="mean demand")
for colour, (price, orders) in zip(LINE_COLOURS, rules.items(), strict=False):
    left.plot(grid, orders, color=colour, label=f"order, price {price:g}")
    right.plot(grid, orders - rules[100.0], color=colour)
left.set(xlabel="temperature", ylabel="units")
right.set(xlabel="temperature", ylabel="order, less that at price 100")
left.legend(frameon=False)
plt.show()
