"""A table of n pairs and no conditional sampler: how far is each way's gradient from the contextual one?

Errors are relative to the exact gradient, root mean squares over seeds. Not a timing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import RESULTS, publish
from jax import lax, random

import bilevelax as bx
from bilevelax.sklearn import Forest, with_conditional

NOISE = 0.5
CLASSES = 3
ORACLE = {"m": 2048, "n": 1024}  # contexts and samples behind the exact gradient


class Case(NamedTuple):
    """A problem with a known conditional."""

    f: Callable[..., Any]
    g: Callable[..., Any]
    draw: Callable[[Any, Any], Any]  # (key, xi) -> eta
    init_y: Callable[[Any, Any], Any]
    x: Any


def signal(xi: Any) -> Any:
    """What the outcome depends on: a wave along the first coordinate and the mean of all."""
    return jnp.sin(2 * xi[0]) + jnp.mean(xi)


def noisy(key: Any, xi: Any) -> Any:
    return signal(xi) + NOISE * random.normal(key)


def pinball(y: Any, eta: Any) -> Any:
    """A smooth newsvendor: holding 1, backlog 3."""
    return (jax.nn.softplus(5 * (y - eta)) + 3 * jax.nn.softplus(5 * (eta - y))) / 5


def logits(xi: Any) -> Any:
    return signal(xi) * jnp.arange(CLASSES)


CASES = {
    "quadratic": Case(
        f=lambda x, y, eta, xi: (y - x[1] * xi[0]) ** 2,
        g=lambda x, y, eta, xi: (y - x[0] * eta) ** 2 / 2,
        draw=noisy,
        init_y=lambda x, xi: jnp.zeros(()),
        x=jnp.array([1.0, 0.5]),
    ),
    "newsvendor": Case(
        f=lambda x, y, eta, xi: pinball(y, eta) + x[1] ** 2 + (y - x[1]) ** 2 / 10,
        g=lambda x, y, eta, xi: pinball(y, eta) + (y - x[0] * xi[0]) ** 2 / 5,
        draw=noisy,
        init_y=lambda x, xi: jnp.zeros(()),
        x=jnp.array([1.0, 0.5]),
    ),
    "softmax": Case(
        f=lambda x, y, eta, xi: jax.nn.logsumexp(y) - y[eta],
        g=lambda x, y, eta, xi: jax.nn.logsumexp(y) - y[eta] + jnp.exp(x[0]) * jnp.sum((y - x[1] * xi[0]) ** 2),
        draw=lambda key, xi: random.categorical(key, logits(xi)),
        init_y=lambda x, xi: jnp.zeros(CLASSES),
        x=jnp.array([-1.0, 0.5]),
    ),
}


def contextual(case: Case, d: int) -> bx.Problem:
    return bx.Problem(
        f=case.f,
        g=case.g,
        sample_context=lambda key, data: random.uniform(key, (d,), minval=-1.0),
        sample_conditional=lambda key, xi, data: case.draw(key, xi),
        init_y=case.init_y,
    )


def table(case: Case, d: int, n: int, seed: int) -> tuple[Any, Any]:
    key_xi, key_eta = random.split(random.key(seed))
    xi = random.uniform(key_xi, (n, d), minval=-1.0)
    return xi, jax.vmap(case.draw)(random.split(key_eta, n), xi)


def gradient(problem: bx.Problem, estimator: Any, x: Any, key: Any) -> np.ndarray:
    return np.asarray(jax.jit(lambda key: estimator.estimate(key, problem, x, estimator.init(problem, x))[0].grad)(key))


def settled(problem: bx.Problem, x: Any, steps: int, key: Any) -> np.ndarray:
    """The mean direction of `amortised` over the second half of a run at one x."""
    estimator = bx.amortised(warm_up=0)

    def one(state: Any, key: Any) -> tuple[Any, Any]:
        estimate, state = estimator.estimate(key, problem, x, state)
        return state, estimate.grad

    run = jax.jit(lambda keys: lax.scan(one, estimator.init(problem, x), keys)[1])
    return np.asarray(run(random.split(key, steps)))[steps // 2 :].mean(axis=0)


def basis_for(d: int) -> bx.Basis:
    return bx.chebyshev(5) if d == 1 else bx.chebyshev(3) if d <= 5 else bx.splines(4)


def ways(case: Case, d: int, n: int, seed: int, steps: int) -> dict[str, np.ndarray]:
    """The gradient by each way from n pairs; the last two may draw from the true conditional."""
    pairs = bx.from_joint(case.f, case.g, table(case, d, n, seed), init_y=case.init_y)
    key, x = random.key(1000 + seed), case.x
    waves = bx.random_features(min(100, n // 8), key=random.key(seed))
    every = bx.minibatch(bx.saa("all"), n, contexts="spread")
    group = 8  # samples of each context with the true conditional
    return {
        "reduced": gradient(bx.reduced(pairs, basis_for(d)), bx.saa("all"), x, key),
        "reduced, random features": gradient(bx.reduced(pairs, waves), bx.saa("all"), x, key),
        "amortised": settled(pairs, x, steps, key),
        "forest": gradient(with_conditional(pairs, Forest(min_samples_leaf=10), 128), every, x, key),
        "true conditional, saa": gradient(contextual(case, d), bx.minibatch(bx.saa(group), n // group), x, key),
        "true conditional, antithetic": gradient(
            contextual(case, d), bx.minibatch(bx.antithetic_mlmc(group), n // group), x, key
        ),
    }


def run(quick: bool = False) -> None:
    names, dimensions, sizes, seeds = list(CASES), (1, 2, 5, 20), (1024,), 3
    if quick:
        names, dimensions, sizes, seeds = ["quadratic"], (1, 5), (256,), 2
    rows = []
    for name in names:
        for d in dimensions:
            exact = gradient(
                contextual(CASES[name], d), bx.minibatch(bx.saa(ORACLE["n"]), ORACLE["m"]), CASES[name].x, random.key(7)
            )
            for n in sizes:
                found = [ways(CASES[name], d, n, seed, 100 if quick else 400) for seed in range(seeds)]
                errors = {
                    way: float(
                        np.sqrt(np.mean([np.sum((each[way] - exact) ** 2) for each in found])) / np.linalg.norm(exact)
                    )
                    for way in found[0]
                }
                rows.append({"problem": name, "d": d, "pairs": n, **errors})
    publish("joint", "Relative error of the gradient from a table of pairs", rows)
    if not quick:
        draw(rows)


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["problem"] for row in rows))
    most = max(row["pairs"] for row in rows)
    figure, axes = plt.subplots(1, len(names), figsize=(10, 3.4), sharey=True, layout="constrained")
    for axis, name in zip(np.ravel(axes), names, strict=True):
        here = [row for row in rows if row["problem"] == name and row["pairs"] == most]
        for way in [column for column in here[0] if column not in ("problem", "d", "pairs")]:
            axis.loglog([row["d"] for row in here], [row[way] for row in here], marker="o", ms=4, label=way)
        axis.set(
            title=name, xlabel="coordinates of the context", xticks=[1, 2, 5, 20], xticklabels=["1", "2", "5", "20"]
        )
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    np.ravel(axes)[0].set_ylabel(f"relative error, {most} pairs")
    figure.legend(*np.ravel(axes)[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(RESULTS / "joint.png", dpi=150)
