r"""
Twenty penalties at once: hyper-parameters by their gradient
============================================================

A ridge regression with one penalty for each of twenty columns. The follower fits the weights y on train rows, the
leader chooses the penalties :math:`e^x` for the error on validation rows. A grid can search one common penalty; twenty
need the gradient through the fit. All rows are stored, so F is exact and ``optax.lbfgs`` has the values that its line
search asks for.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.report.curves import LINE_COLOURS

rng = np.random.default_rng(0)
columns, informative = 20, 4
weights = np.where(np.arange(columns) < informative, 1.0, 0.0)


def rows(n):
    a = rng.normal(size=(n, columns))
    return {"a": a, "b": a @ weights + rng.normal(size=n)}


train, validation, test = rows(30), rows(60), rows(2000)
one = lambda part: {name: column[None] for name, column in part.items()}  # one data set: one context


def error(y, row):
    return (row["a"] @ y - row["b"]) ** 2 / 2


problem = bx.from_splits(
    f=lambda x, y, row, xi: error(y, row),
    g=lambda x, y, row, xi: error(y, row) + jnp.sum(jnp.exp(x) * y**2) / 2,
    contexts=np.zeros(1),
    train=one(train),
    validation=one(validation),
    init_y=lambda x, xi: jnp.zeros(columns),
)
key = random.key(0)
whole = bx.minibatch(bx.saa("all"), 1, contexts="spread")
run = bx.minimize(problem, whole, optax.lbfgs(), jnp.zeros(columns), key=key, T=15, every=3)


def errors(x):
    """(validation, test) error of the fit under these penalties."""
    y = np.asarray(bx.respond(problem, x, problem.nth_context(0), key=key))
    return [np.mean((part["a"] @ y - part["b"]) ** 2) / 2 for part in (validation, test)]


grid = np.linspace(-4, 3, 8)
common = [errors(jnp.full(columns, x)) for x in grid]
best = int(np.argmin([each[0] for each in common]))
print(f"one penalty for all: {common[best][1]:.3f} on test rows; twenty: {errors(run.x)[1]:.3f}; noise alone 0.500")
print("F along the run:", [round(row["F"], 4) for row in run.history[1:]])

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
left.plot(grid, [each[0] for each in common], "o-", color=LINE_COLOURS[0], label="one penalty, validation")
left.plot(grid, [each[1] for each in common], "o--", color=LINE_COLOURS[0], label="one penalty, test")
for style, value, part in zip(("-", "--"), errors(run.x), ("validation", "test"), strict=True):
    left.axhline(value, linestyle=style, color=LINE_COLOURS[1], label=f"twenty penalties, {part}")
left.set(xlabel="log of the common penalty", ylabel="error")
left.legend(frameon=False, fontsize="small")
right.bar(np.arange(columns), np.clip(np.asarray(run.x), -6, 6), color=np.where(weights > 0, *LINE_COLOURS[2:4]))
right.set(xlabel="column (the first four matter)", ylabel="log penalty found")
plt.show()
