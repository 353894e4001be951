r"""
Instrumental variables: what does a price do to demand?
=======================================================

Prices follow demand shocks that nobody recorded, so the regression of demand on price is wrong. An instrument z, the
cost of a raw material, moves the price and nothing else. The right curve h satisfies :math:`E[q - h(p) \mid z] = 0` for
every z. ``IVRegressor`` finds it: fit(X, y, Z) with treatments, outcomes and instruments.
"""

import matplotlib.pyplot as plt
import numpy as np

from bilevelax.report.curves import LINE_COLOURS
from bilevelax.sklearn import IVRegressor


def demand(p):
    return 2 - p + 0.5 * np.tanh(2 * p)


rng = np.random.default_rng(0)
z = rng.uniform(-2, 2, 1000)
shock = rng.normal(size=1000)
p = z + 0.7 * shock + 0.3 * rng.normal(size=1000)
q = demand(p) + shock

# %%
# With a straight line this is two-stage least squares. The first stage tells whether the instrument moves the price; an
# F below 10 would be warned of.

line = IVRegressor().fit(p[:, None], q, z)
print(f"slope {line.coef_[0]:.3f}, standard error {line.stderr_[0]:.3f}")
print(line.first_stage_[0])

# %%
# Curves: smooth functions of the price, and of the instrument for the conditional mean. Without ``Z`` the price is its
# own instrument, which is plain regression. A control function puts what the instrument leaves of the price beside the
# curve: here shocks act through that part in a straight line, which is what it assumes, and it errs least.

models = {
    "instrument": IVRegressor("kernel", components=30).fit(p[:, None], q, z),
    "instrument, nearest rows": IVRegressor("kernel", components=30, conditional="knn").fit(p[:, None], q, z),
    "instrument, control function": IVRegressor("kernel", components=30, method="control").fit(p[:, None], q, z),
    "plain regression": IVRegressor("kernel", components=30).fit(p[:, None], q),
}

at = np.linspace(-2, 2, 81)
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
axes.plot(p[:400], q[:400], ".", color="0.75", markersize=3, zorder=0)
axes.plot(at, demand(at), color="black", label="what a price does")
for colour, (name, model) in zip(LINE_COLOURS, models.items(), strict=False):
    values = model.predict(at[:, None])
    axes.plot(at, values, color=colour, label=name)
    print(f"{name}: off by {np.sqrt(np.mean((values - demand(at)) ** 2)):.2f}")
axes.set(xlabel="price", ylabel="quantity", xlim=(-3, 3))
axes.legend(frameon=False)
plt.show()
