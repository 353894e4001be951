r"""
Predict, then decide: learn the forecast for the decision it feeds
==================================================================

A normal forecast of demand is wrong in shape, and the order made from it pays. Fitted by maximum likelihood it is the
best forecast; fitted through the order, the lower level, it is the best for the cost.
"""

import matplotlib.pyplot as plt
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications import end_to_end
from bilevelax.report.curves import LINE_COLOURS

app = end_to_end.make()
run = bx.minimize(
    app.problem, bx.minibatch(bx.saa(8), 64), optax.adam(0.01), app.x1, key=random.key(0), T=400, every=20,
    metrics=app.metrics,
)  # fmt: skip
names = {
    "true_cost": "forecast learnt through the decision",
    "two_step_cost": "forecast of maximum likelihood",
    "oracle_cost": "who knows the law of demand",
}
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for colour, (column, name) in zip(LINE_COLOURS, names.items(), strict=False):
    axes.plot([row["t"] for row in run.history], [row[column] for row in run.history], color=colour, label=name)
    print(f"{name}: {run.history[-1][column]:.3f}")
axes.set(xlabel="outer steps t", ylabel="cost of the orders, fresh days")
axes.legend(frameon=False)
plt.show()
