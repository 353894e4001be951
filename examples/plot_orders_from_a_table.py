r"""
Orders from a table of past days, when the weather forecast is off
==================================================================

A restaurant's seven dishes on 760 days, with calendar and weather (`load_yaz`). Every rule is fitted on the first three
quarters of the days and pays for the last one: with the weather as it was, and with a forecast that is off, now and
then by a lot (`evaluate_shift` with heavy tails). A unit left over costs 1, a unit missing 9. All settings are the
defaults. Quantile regressions lean on the weather and pay for it; the robust rule and the forest hardly do.
"""

import os

import matplotlib.pyplot as plt
import numpy as np

from bilevelax.datasets import load_yaz
from bilevelax.report.curves import LINE_COLOURS
from bilevelax.sklearn import RobustNewsvendor, baselines, evaluate_shift

HOLDING, BACKLOG = 1, 9
WEATHER = ["wind", "clouds", "rain", "sunshine", "temperature"]
quick = {"max_iter": 20, "early_stopping": False} if os.environ.get("BILEVELAX_QUICK") else {}

days = load_yaz()
first = round(0.75 * len(days.X))
robust = RobustNewsvendor(HOLDING, BACKLOG, perturb=WEATHER, random_state=0, **quick)
rivals = baselines(HOLDING, BACKLOG, random_state=0)
rules = {"robust": robust, **{name: rivals[name] for name in ("forest", "boosted quantile", "linear quantile")}}

costs = {}
for name, rule in rules.items():
    rule.fit(days.X[:first], days.y[:first])
    found = evaluate_shift(rule, days.X[first:], days.y[first:], shift="heavy_tails", columns=WEATHER)
    costs[name] = found["cost"], found["shifted_cost"]
    print(f"{name}: {found['cost']:.1f}, with the forecast off {found['shifted_cost']:.1f}")

figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for i, label in enumerate(("weather as it was", "forecast of the weather off")):
    place = np.arange(len(costs)) + 0.4 * i
    axes.barh(place, [each[i] for each in costs.values()], 0.38, color=LINE_COLOURS[i], label=label)
axes.set_yticks(np.arange(len(costs)) + 0.2, list(costs))
axes.invert_yaxis()
axes.set_xlabel("mean cost of a day, all dishes")
figure.legend(loc="outside upper center", ncols=2, frameon=False)
plt.show()
