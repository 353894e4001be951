"""One shared follower converges to the wrong point; RT-MLMC, which answers every context afresh, does not.

The follower learns y*(x, xi) = x xi and the leader wants y = 1:

    g = (y - x xi - eta)^2 / 2,   f = (y - 1)^2 / 2,   xi ~ Exp(1),   eta ~ N(0, 1/4)

F(x) = E (x xi - 1)^2 / 2 is least at E xi / E xi^2 = 1/2. A single-loop method with one y for all
contexts learns y = x E xi instead, and stops where that is 1: at x = 1 / E xi = 1.

    python examples/single_loop_fails.py [folder for the picture]
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import optax
from jax import random
from matplotlib.figure import Figure

import bilevelax as bx
from bilevelax.plots import COLOURS

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
figure = Figure(figsize=(6.4, 3.6), layout="constrained", dpi=150)
axes = figure.subplots()
for colour, (name, estimator) in zip(COLOURS, methods.items(), strict=False):
    optimizer, watch = optax.sgd(lambda t: 2 / (t + 20)), lambda x: {"x": float(x)}
    run = bx.minimize(problem, estimator, optimizer, jnp.zeros(()), key=random.key(0), T=T, every=20, metrics=watch)
    print(f"{name}: x = {run.x:.3f}")
    axes.plot([row["t"] for row in run.history], [row["x"] for row in run.history], color=colour, label=name)
for x, note in {0.5: "right: x = 1/2", 1.0: "wrong: x = 1"}.items():
    axes.axhline(x, color="black", linewidth=0.8, linestyle="dashed")
    axes.annotate(note, (T, x), xytext=(0, 6), textcoords="offset points", ha="right")
axes.set(xlabel="outer steps t", ylabel="x", ylim=(0, 1.7))
axes.legend(loc="upper right", ncols=3, frameon=False, fontsize="small")
target = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "single_loop_fails.png"
figure.savefig(target)
print(f"wrote {target}")
