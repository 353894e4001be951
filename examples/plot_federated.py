r"""
Personalised federated learning, on clients it has seen and on new ones
=======================================================================

Every client is a context: it adapts the shared centre to its few rows and the leader pays on its held-out rows. The
cost of a step does not depend on how many clients there are, and a client needs no place in a table: new ones
adapt like the others.
"""

import matplotlib.pyplot as plt
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications import personalized_fl
from bilevelax.report.curves import LINE_COLOURS

app = personalized_fl.make(clients=200, unseen=50, classes=5, d=16, least=8, most=60)
run = bx.minimize(
    app.problem,
    bx.minibatch(bx.antithetic_mlmc(n0=8, levels=3, factor=2), 16),
    optax.adam(0.03),
    app.x1,
    key=random.key(0),
    T=300,
    every=15,
    metrics=app.metrics,
)
names = {
    "upper_loss": "adapted, clients of training",
    "unseen_loss": "adapted, new clients",
    "centre_loss": "centre, not adapted",
}
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for colour, (column, name) in zip(LINE_COLOURS, names.items(), strict=False):
    axes.plot([row["t"] for row in run.history], [row[column] for row in run.history], color=colour, label=name)
    print(f"{name}: {run.history[-1][column]:.3f}")
axes.set(xlabel="outer steps t", ylabel="loss on held-out rows")
axes.legend(frameon=False)
plt.show()
