r"""
A toll from a table of hours: 3 functions against 50 partitions
===============================================================

Drivers choose between a toll road, whose delay grows with the share :math:`y` of them who take it, and a slow road. An
operator sets one toll :math:`x` for all hours. There is a table with one row a day: the hour :math:`\xi` and how fast
delays grew then, :math:`\eta`. What else could have happened at that hour is not known.

Cutting the day into 50 parts and treating the rows of a part as one distribution is the obvious way. Writing the share
as :math:`y(\xi) = W \Phi(\xi)` with 3 functions uses every row for every hour.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.report.curves import LINE_COLOURS

ROWS, TABLES, PARTS = 400, 40, 50
toll = jnp.asarray(0.3)
growth = lambda hour: 1 + 0.4 * np.sin(1.5 * hour)  # the mean of eta at an hour
slow = lambda hour: 1.1 + 0.3 * hour  # what the slow road costs an hour's drivers


def table(seed):
    rng = np.random.default_rng(seed)
    hour = rng.permutation(2 * (np.arange(ROWS) + rng.uniform(size=ROWS)) / ROWS - 1)
    return hour, growth(hour) * rng.gamma(4, 1 / 4, ROWS)


def problem_of(rows):
    return bx.from_joint(
        f=lambda x, y, eta, hour: -x * y,  # what the operator earns
        g=lambda x, y, eta, hour: (eta + 0.5) * y**2 / 2 - (slow(hour) - x) * y,  # Wardrop's equilibrium
        rows=rows,
        init_y=lambda x, hour: jnp.zeros(()),
    )


def parts(z):
    return jax.nn.one_hot(jnp.clip((z[0] + 1) / 2 * PARTS, 0, PARTS - 1).astype(jnp.int32), PARTS, dtype=z.dtype)


# %%
# The share at an hour is known here, :math:`(s(\xi) - x) / (E[\eta | \xi] + 1/2)`, and so is the gradient.

grid = np.linspace(-1, 1, 2001)
truth = (slow(grid) - 0.3) / (growth(grid) + 0.5)
wanted = -np.mean((slow(grid) - 0.6) / (growth(grid) + 0.5))
bases = {"3 functions": bx.chebyshev(2), f"{PARTS} partitions": parts}
pairs, exact = problem_of(table(0)), bx.saa("all")
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
left.plot(grid, truth, color="black", linewidth=0.8, linestyle="dashed", label="truth")
for place, (name, basis) in enumerate(bases.items()):
    of_table = lambda seed: bx.reduced(pairs.replace(data=problem_of(table(seed)).data), basis)  # noqa: B023
    first = of_table(0)
    one = jax.jit(lambda data: exact.estimate(random.key(0), first.replace(data=data), toll, ())[0].grad)  # noqa: B023
    errors = np.array([one(of_table(seed).data) for seed in range(TABLES)]) / wanted - 1
    W = bx.respond(first, toll, first.nth_context(0), key=random.key(0))
    shares = bx.answers(first, toll, W, grid)
    off = np.sqrt(np.mean((shares - truth) ** 2)) / np.sqrt(np.mean(truth**2))
    left.plot(grid, shares, color=LINE_COLOURS[place], label=name)
    right.hist(100 * errors, bins=np.linspace(-12, 12, 25), color=LINE_COLOURS[place], alpha=0.6, label=name)
    print(f"{name}: shares off by {off:.1%}, gradient off by {np.sqrt(np.mean(errors**2)):.1%} over {TABLES} tables")
left.set(xlabel="hour, scaled", ylabel="share on the toll road", title=f"one table of {ROWS} rows")
right.set(xlabel="error of the gradient, %", ylabel="tables", title=f"{TABLES} tables")
left.legend(frameon=False)
right.legend(frameon=False)
plt.show()
