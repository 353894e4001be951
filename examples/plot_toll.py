r"""
Tolls on four roads: drivers who choose among routes
====================================================

Drivers spread over parallel roads until nobody gains by another: they minimise Beckmann's potential over the flows that
add up to the demand, a simplex that differs from hour to hour. The leader charges tolls on three of the roads, the same
in every hour, to shorten the mean time of all.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import random

import bilevelax as bx
from bilevelax.report.curves import LINE_COLOURS

FREE, SLOPE = jnp.array([10.0, 12.0, 15.0, 20.0]), jnp.array([2.0, 1.2, 0.8, 0.2])  # minutes; minutes per 1,000 cars
RAIN, WEATHER = jnp.array([0.0, 1.0, 0.0, 3.0]), jnp.array([0.7, 0.3])  # minutes more when wet; chances of dry and wet
charged = lambda x: jnp.concatenate([x, jnp.zeros(1)])  # the long and wide road is free


def potential(x, y, eta, xi):
    return (FREE + eta * RAIN + charged(x)) @ y + SLOPE @ y**2 / 2


def mean_time(x, y, eta, xi):
    return (FREE + eta * RAIN + SLOPE * y) @ y / xi


roads = bx.Problem(
    f=mean_time,
    g=potential,
    sample_context=lambda key, data: random.uniform(key, (), minval=5.0, maxval=35.0),  # 1,000 cars in an hour
    sample_conditional=lambda key, xi, data: random.bernoulli(key, WEATHER[1]).astype(float),
    support=lambda xi, data: (jnp.array([0.0, 1.0]), WEATHER),
    init_y=lambda x, xi: jnp.full(4, xi / 4),
    constraint=bx.simplex(lambda x, xi: xi),
    mu_g=float(SLOPE.min()),
    L_g1=float(SLOPE.max()),
)
solved = bx.solve(roads, jnp.zeros(3), key=random.key(0))
print(solved.why)
print("tolls in minutes:", np.round(charged(solved.x), 2))

# %%
# With the time of all as their aim, drivers would count what they cost each other: the flows that no toll can beat.

together = roads.replace(g=lambda x, y, eta, xi: mean_time(x, y, eta, xi) * xi)
demands = jnp.linspace(5.0, 35.0, 13)
cases = {"no tolls": (roads, jnp.zeros(3)), "tolls": (roads, solved.x), "best for all": (together, jnp.zeros(3))}
figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
for (name, (problem, x)), style in zip(cases.items(), ("--", "-", "k."), strict=True):
    flows = jnp.stack([bx.respond(problem, x, demand, key=random.key(0)) for demand in demands])
    times = (flows * (FREE + WEATHER[1] * RAIN + SLOPE * flows)).sum(1) / demands
    right.plot(demands, times, style, label=name)
    print(f"{name}: {times.mean():.3f} minutes")
    if name != "best for all":
        for road, colour in enumerate(LINE_COLOURS[:4]):
            label = f"road {road + 1}" if name == "tolls" else None
            left.plot(demands, flows[:, road], style, color=colour, label=label)
left.set(xlabel="demand, 1,000 cars an hour", ylabel="cars on a road, 1,000 (dashed: no tolls)")
right.set(xlabel="demand, 1,000 cars an hour", ylabel="mean time, minutes")
left.legend(frameon=False)
right.legend(frameon=False)
plt.show()
