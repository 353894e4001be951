r"""
One shared follower converges to the wrong point
================================================

The follower learns :math:`y^*(x; \xi) = x \xi` and the leader wants :math:`y = 1`:

.. math::
    g = (y - x \xi - \eta)^2 / 2, \quad f = (y - 1)^2 / 2, \quad \xi \sim Exp(1), \quad \eta \sim N(0, 1/4).

:math:`F(x) = E (x \xi - 1)^2 / 2` is least at :math:`E \xi / E \xi^2 = 1/2`. A single-loop method with one y for
all contexts learns :math:`y = x E \xi` instead, and stops where that is 1: at :math:`x = 1`. RT-MLMC answers every
context afresh.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from jax import random

import bilevelax as bx
from bilevelax.report.curves import LINE_COLOURS

problem = bx.Problem(
    f=lambda x, y, eta, xi: (y - 1) ** 2 / 2,
    g=lambda x, y, eta, xi: (y - x * xi - eta) ** 2 / 2,
    sample_context=lambda key, data: random.exponential(key),
    sample_conditional=lambda key, xi, data: random.normal(key) / 2,
    init_y=lambda x, xi: jnp.zeros_like(x),
    mu_g=1.0,
    L_g1=1.0,
)
T = 3000
methods = {
    "SOBA, one shared y": bx.single_loop("soba", batch=8),
    "TTSA, one shared y": bx.single_loop("ttsa", batch=8),
    "RT-MLMC": bx.minibatch(bx.rt_mlmc(K=8, lower=bx.epoch_sgd(beta0=2.0)), 8),
}
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for colour, (name, estimator) in zip(LINE_COLOURS, methods.items(), strict=False):
    optimizer, watch = optax.sgd(lambda t: 2 / (t + 20)), lambda x: {"x": float(x)}
    run = bx.minimize(problem, estimator, optimizer, jnp.zeros(()), key=random.key(0), T=T, every=20, metrics=watch)
    print(f"{name}: x = {run.x:.3f}")
    axes.plot([row["t"] for row in run.history], [row["x"] for row in run.history], color=colour, label=name)
for x, note in {0.5: "right: x = 1/2", 1.0: "wrong: x = 1"}.items():
    axes.axhline(x, color="black", linewidth=0.8, linestyle="dashed")
    axes.annotate(note, (T, x), xytext=(0, 6), textcoords="offset points", ha="right")
axes.set(xlabel="outer steps t", ylabel="x", ylim=(0, 1.7))
axes.legend(loc="upper right", ncols=3, frameon=False, fontsize="small")
plt.show()
