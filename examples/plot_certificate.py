r"""
A run that stops by itself, with a certificate
==============================================

Inner products of independent gradients estimate :math:`|\nabla F(x)|^2` without bias. The run below looks
after every chunk of steps and stops where the 95 % interval lies below :math:`\epsilon^2`, twice in a row. The
problem is one whose true gradient is known, which the run does not see.
"""

import matplotlib.pyplot as plt
import numpy as np
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications import quadratic
from bilevelax.report.curves import LINE_COLOURS

eps = 0.4
app = quadratic.make()
run = bx.minimize(
    app.problem,
    bx.minibatch(bx.saa(8), 16),
    optax.sgd(optax.exponential_decay(0.05, 100, 0.5)),
    app.x1,
    key=random.key(0),
    T=1000,
    every=20,
    metrics=app.metrics,
    stop_when=bx.certified(eps, n=2048),
)
steps = [row["t"] for row in run.history]
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
low, high = ([max(row[name], 1e-4) ** 0.5 for row in run.history] for name in ("grad2_low", "grad2_high"))
axes.fill_between(steps, low, high, color=LINE_COLOURS[0], alpha=0.25, label="95 % interval")
axes.plot(steps, [row["grad_norm"] for row in run.history], color=LINE_COLOURS[1], label="truth")
axes.axhline(eps, color="black", linewidth=0.8, linestyle="dashed")
axes.set(xlabel="outer steps t", ylabel=r"$|\nabla F(x_t)|$", yscale="log", ylim=(0.03, None))
axes.legend(frameon=False)
print(f"stopped at t = {steps[-1]}, where |grad F| = {run.history[-1]['grad_norm']:.3f} <= {eps}")
inside = np.mean([a <= row["grad_norm"] <= b for a, b, row in zip(low, high, run.history, strict=True)])
print(f"the truth was inside the interval at {inside:.0%} of the looks")
plt.show()
