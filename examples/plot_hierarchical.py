r"""
Hierarchical representation learning: a starting point for every family of tasks
================================================================================

Tell one character from others by one drawing of it and one other: a tiny task, of which every alphabet has dozens.
Characters of one alphabet are alike, so tasks should start from their alphabet's centre,
:math:`y_a^*(x) = \arg\min_y E_{\eta | a} \, l(w(y; \eta)) + \tfrac{\lambda}{2} |y - c|^2`: the lower level, with the
alphabet as context. The leader learns the map of features and the centre c of all alphabets; lam tells how far
an alphabet's centre may go. Drawings here are synthetic; `docs/applications.md` has Omniglot.
"""

import matplotlib.pyplot as plt
import optax
from jax import random

import bilevelax as bx
from bilevelax.applications import hierarchical
from bilevelax.report.curves import LINE_COLOURS

app = hierarchical.make(lam=0.1, groups=24, shots=1, d=12, dim=6)
run = bx.minimize(
    app.problem,
    bx.minibatch(bx.saa(8), 12, contexts="spread"),
    optax.adam(1e-2),
    app.x1,
    key=random.key(0),
    T=90,
    every=10,
    metrics=app.metrics,
    progress=False,
)

# %%
# Accuracy on tasks of six alphabets that training never met, by where their classifiers start.

names = {"group": "the alphabet's centre", "one_centre": "one centre for all", "alone": "nothing"}
figure, axes = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
for colour, (key, name) in zip(LINE_COLOURS, names.items(), strict=False):
    axes.plot([row["t"] for row in run.history], [row[key] for row in run.history], color=colour, label=name)
    print(f"from {name}: {run.history[-1][key]:.3f}")
axes.set(xlabel="step", ylabel="accuracy on new alphabets")
axes.legend(frameon=False)
plt.show()
