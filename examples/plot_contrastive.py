r"""
Contrastive learning: a temperature for every anchor
====================================================

A network should map two drawings of a character near each other and drawings of others away. How hard near negatives
count is set by a temperature. Here every anchor chooses its own, :math:`\tau \ge \tau_0`: the lower level of a bilevel
problem with a bound. On Omniglot this gains nothing over one tuned temperature (`docs/applications.md`); the page shows
how such a lower level is written.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications import contrastive
from bilevelax.report.curves import LINE_COLOURS

TAU0, RHO, RIDGE = 0.1, 1.0, 1e-2
app = contrastive.make(rho=RHO, tau0=TAU0, ridge=RIDGE, negatives=64, width=32, dim=8, d=16)
run = bx.minimize(
    app.problem,
    bx.minibatch(bx.saa(1), 32),
    optax.adam(1e-2),
    app.x1,
    key=random.key(0),
    T=150,
    every=150,
    progress=False,
)
for name, x in (("before", app.x1), ("after", run.x)):
    print(name, {key: round(value, 3) for key, value in app.metrics(x).items()})

# %%
# Temperatures of 32 anchors against how much their similarities to negatives differ. None is below the bound.

asked = contrastive.stored(app.problem, contrastive.parts(TAU0, 2.0, RIDGE), random.key(1))
tau = contrastive.temperatures(asked, run.x)
anchors, negatives = asked.data.contexts, asked.data.outcomes[:, 0]
s = jax.vmap(lambda xi, etas: jax.vmap(lambda eta: contrastive.excess(run.x, eta, xi))(etas))(anchors, negatives)
figure, axes = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
axes.plot(np.asarray(s).std(axis=1), tau, "o", color=LINE_COLOURS[0])
axes.axhline(TAU0, color="0.6", linewidth=1)
axes.set(xlabel="deviation of similarities to negatives", ylabel="temperature", ylim=(0, None))
plt.show()
