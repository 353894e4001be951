r"""
Pricing for customers who can say no
====================================

A shop sets the prices of two goods, then each customer buys what suits him best, never less than nothing and never more
than fits his shelf: a follower with a constraint. Customers differ in what they like (the context). Which customers buy
nothing changes with the prices, and the gradient of the profit knows it, because the constraint belongs to the problem.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.report.curves import LINE_COLOURS

cost = jnp.asarray([0.5, 1.0])
swap = jnp.asarray([[1.0, 0.5], [0.5, 1.0]])  # goods that partly replace each other
likes = random.gamma(random.key(0), 2.0, (150, 2)) + jnp.asarray([0.5, 1.0])  # of 150 customers

problem = bx.from_arrays(
    f=lambda x, y, eta, xi: -(x - cost) @ y,
    g=lambda x, y, eta, xi: y @ swap @ y / 2 - (xi - x) @ y,
    contexts=likes,
    outcomes=jnp.zeros((len(likes), 1)),
    init_y=lambda x, xi: jnp.zeros(2),
    constraint=bx.box(0.0, 1.5),
)
key, x1 = random.key(1), jnp.asarray([1.0, 1.5])
found = bx.solve(problem, x1, key=key, tol=1e-3, progress=False)
profit = lambda x: -bx.evaluate(problem, jnp.asarray(x), key=key).mean  # exact: every customer is stored
print(f"profit a customer: {profit(x1):.3f} at first, {profit(found.x):.3f} at the prices {np.round(found.x, 2)}")
print(found.certificate)

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
prices = np.linspace(0.6, 5.0, 12)
for i, colour in zip(range(2), LINE_COLOURS, strict=False):
    moved = [np.where(np.arange(2) == i, price, found.x) for price in prices]
    left.plot(prices, [profit(x) for x in moved], color=colour, label=f"price of good {i + 1} moves")
    left.plot(found.x[i], profit(found.x), "o", color=colour)
left.set(xlabel="price", ylabel="profit a customer")
left.legend(frameon=False)
bought = np.asarray([bx.respond(problem, found.x, problem.nth_context(i), key=key) for i in range(len(likes))])
faces = np.select([(bought <= 1e-6).all(1), (bought <= 1e-6).any(1), (bought >= 1.5 - 1e-6).any(1)], [0, 1, 2], 3)
for kind, name in enumerate(("buys nothing", "buys one good", "fills a shelf", "buys some of both")):
    at = np.asarray(likes)[faces == kind]
    right.plot(*at.T, ".", color=LINE_COLOURS[kind], label=name, markersize=5)
right.set(xlabel="likes good 1", ylabel="likes good 2")
right.legend(frameon=False, fontsize="small")
plt.show()
