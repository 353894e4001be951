r"""
Meta-learning: where should adaptation start?
=============================================

Twenty tasks of ten classes share a centre x. A task adapts it to its own training images by
:math:`y^*(x; i) = \arg\min_y l(y, D_i) + \tfrac{\lambda}{2} |y - x|^2`; the leader pays the adapted classifier's loss
on held-out images. MAML replaces the adaptation by one gradient step, and what it learns is worth less once tasks
adapt to the end.
"""

import matplotlib.pyplot as plt
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications import meta_learning
from bilevelax.report.curves import LINE_COLOURS

app = meta_learning.make(images=20, d=32)
methods = {
    "RT-MLMC": bx.minibatch(bx.rt_mlmc(K=4, lower=bx.epoch_sgd(batch=8), batch=8), 8, mode="shared"),
    "sample average": bx.minibatch(bx.saa(16), 8),
    "MAML, one step": bx.minibatch(bx.maml(m=1, gamma=0.05), 8),
}
figure, panels = plt.subplots(1, 2, figsize=(8.0, 3.4), layout="constrained", sharey=True)
for colour, (name, estimator) in zip(LINE_COLOURS, methods.items(), strict=False):
    run = bx.minimize(
        app.problem, estimator, optax.adam(0.03), app.x1, key=random.key(0), T=100, every=10, metrics=app.metrics
    )
    for axes, column in zip(panels, ("t", "seconds"), strict=True):
        axes.plot(
            [row[column] for row in run.history], [row["upper_loss"] for row in run.history], color=colour, label=name
        )
    last = run.history[-1]
    print(f"{name}: adapted loss on held-out rows {last['upper_loss']:.3f}, accuracy {last['upper_accuracy']:.3f}")
panels[0].set(xlabel="outer steps t", ylabel="loss after adaptation")
panels[1].set(xlabel="seconds, without compilation")
panels[0].legend(frameon=False)
plt.show()
