"""Contrastive learning in which every anchor has a temperature of its own (Qiu et al., ICML 2023).

.. math::
    \\min_x E_\\xi \\min_{\\tau \\ge \\tau_0} E_{\\eta|\\xi} \\,
    \\tau \\log \\tfrac1B \\sum_{b \\in \\eta} e^{s_x(b, \\xi) / \\tau} + \\rho \\tau + \\tfrac{\\mu}{2} \\tau^2

xi is an anchor with a positive, eta a set of B negatives, s_x the similarity of the anchor to a negative less that to
the positive, under the network x. In tau this is the dual of the worst case among negatives that are reweighted by
at most rho in relative entropy: at the answer the weights softmax(s / tau) are that far from equal ones. The bound
tau >= tau_0 is a constraint of the problem; tau_0 = tau_max is one fixed temperature.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.applications import Application
from bilevelax.base.compiling import program
from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core.inverse import none
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.exact.constraints.sets import box
from bilevelax.exact.respond import every_answer
from bilevelax.problems.stored import from_arrays

NO_INVERSE = none()  # f = g: at the answer grad_2 f has no part that an answer can follow
ASKED = 32  # anchors whose temperatures are told in the metrics


class Bounds(NamedTuple):
    """Of the temperatures, and their price; data, so that one program serves all."""

    tau0: jax.Array
    tau_max: jax.Array
    rho: jax.Array


class Drawings(NamedTuple):
    """The data leaves."""

    rows: jax.Array  # (characters, drawings, d)
    bounds: Bounds


class Anchor(NamedTuple):
    """xi: two drawings of a character, its number, and the bounds."""

    view: jax.Array
    positive: jax.Array
    character: jax.Array
    bounds: Bounds


def embed(x: X, a: jax.Array) -> jax.Array:
    """One hidden layer, scaled to length one."""
    value = x["out"] @ jnp.tanh(x["hidden"] @ a + x["shift"])
    return value / jnp.sqrt(jnp.sum(value**2) + 1e-12)


def first(d: int, width: int, dim: int, key: Key) -> X:
    """Random weights."""
    key_h, key_o = random.split(key)
    return {
        "hidden": random.normal(key_h, (width, d), float) / math.sqrt(d),
        "shift": jnp.zeros(width, float),
        "out": random.normal(key_o, (dim, width), float) / math.sqrt(width),
    }


def excess(x: X, negative: jax.Array, xi: Anchor) -> jax.Array:
    """s: how much nearer the negative is to the anchor than the positive."""
    return embed(x, xi.view) @ (embed(x, negative) - embed(x, xi.positive))


class Shared(NamedTuple):
    """The functions of such a problem."""

    g: Any
    init_y: Any


@functools.cache
def shared(ridge: float) -> Shared:
    """One set for one ridge, so that problems with other bounds are not compiled again."""

    def g(x: X, y: Y, eta: jax.Array, xi: Anchor) -> jax.Array:
        tau = jnp.where(y >= xi.bounds.tau0, y, xi.bounds.tau0)  # below, where no answer is, its value at the bound
        s = jax.vmap(lambda negative: excess(x, negative, xi))(eta)
        worst = tau * (jax.nn.logsumexp(s / tau) - math.log(len(eta)))
        return worst + xi.bounds.rho * tau + ridge / 2 * y**2

    # from the left Newton's steps on a concave derivative do not overshoot
    start = lambda x, xi: xi.bounds.tau0.astype(x["out"].dtype)
    return Shared(g, start)


def parts(tau0: float, tau_max: float, ridge: float) -> dict[str, Any]:
    """Arguments of a problem; the curvature is the variance of s under softmax(s / tau), at most 4, over tau^3."""
    g, init_y = shared(ridge)
    constraint = box(tau0, tau_max)
    return {"f": g, "g": g, "init_y": init_y, "constraint": constraint, "mu_g": ridge, "L_g1": ridge + 4 / tau0**3}


def draw_anchor(key: Key, data: Drawings) -> Anchor:
    """A character and two of its drawings."""
    characters, drawings, _ = data.rows.shape
    key_c, key_i, key_j = random.split(key, 3)
    c = random.randint(key_c, (), 0, characters)
    i = random.randint(key_i, (), 0, drawings)
    j = (i + random.randint(key_j, (), 1, drawings)) % drawings
    return Anchor(data.rows[c, i], data.rows[c, j], c, data.bounds)


@functools.cache
def drawing(negatives: int) -> Any:
    """The sampler of so many drawings of other characters."""

    def draw(key: Key, xi: Anchor, data: Drawings) -> jax.Array:
        key_c, key_i = random.split(key)
        characters, drawings, _ = data.rows.shape
        c = (xi.character + random.randint(key_c, (negatives,), 1, characters)) % characters
        return data.rows[c, random.randint(key_i, (negatives,), 0, drawings)]

    return draw


def synthetic(characters: int, drawings: int, d: int, seed: int) -> jax.Array:
    """Characters in families, some drawn carefully and some not: (characters, drawings, d)."""
    rng = np.random.default_rng(seed)
    families = rng.normal(size=(max(1, characters // 8), d))
    centres = families[rng.integers(len(families), size=characters)] + 0.5 * rng.normal(size=(characters, d))
    care = rng.uniform(0.2, 0.8, (characters, 1, 1))
    return jnp.asarray(centres[:, None] + care * rng.normal(size=(characters, drawings, d)), float)


@program()
def nearest_mean(x: X, rows: jax.Array) -> jax.Array:
    """Share of the second half of each character's drawings whose nearest mean of first halves is its own."""
    e = jax.vmap(jax.vmap(lambda a: embed(x, a)))(rows)
    half = rows.shape[1] // 2
    means = jnp.mean(e[:, :half], axis=1)
    far = jnp.sum((e[:, half:, None] - means[None, None]) ** 2, axis=-1)
    own = jnp.arange(len(rows), dtype=jnp.int32)[:, None]
    return jnp.mean(jnp.argmin(far, axis=-1).astype(jnp.int32) == own, dtype=float)


# for the contract tests
SMALLEST = {"characters": 3, "drawings": 2, "d": 2, "width": 2, "dim": 2, "negatives": 2, "tau0": 1.0, "ridge": 1.0}


def make(
    features: Any = None,
    test_features: Any = None,
    rho: float = 0.3,
    tau0: float = 0.05,
    tau_max: float = 2.0,
    ridge: float = 1e-2,
    negatives: int = 16,
    width: int = 32,
    dim: int = 16,
    characters: int = 64,
    drawings: int = 10,
    d: int = 8,
    seed: int = 0,
) -> Application:
    """The network that tells characters apart, with a temperature for each anchor.

    Positives are two drawings of a character, negatives those of others. Metrics: ``accuracy`` of the nearest mean on
    characters that were not trained on, and of 32 anchors the mean ``temperature`` and the share ``at_bound``.

    Args:
        features: (characters, drawings, d); without them synthetic ones.
        test_features: of other characters, for the metrics; by default the last quarter of the characters.
        rho: relative entropy of the worst case among negatives: larger, smaller temperatures.
        tau0, tau_max: bounds of the temperatures. Equal ones are one fixed temperature.
        ridge: strong convexity of the lower level.
        negatives: B, drawn at once.
        width, dim: hidden units and coordinates of the embedding.
        characters, drawings, d: of the synthetic features.
        seed: of these and of the first weights.
    """
    counts = {"width": width, "dim": dim, "d": d, "negatives": negatives}
    for name, value in counts.items():
        require_integer(name, "contrastive", value, 1)
    for name, least in {"characters": 3, "drawings": 2}.items():
        require_integer(name, "contrastive", {"characters": characters, "drawings": drawings}[name], least)
    for name, positive in {"rho": rho, "tau0": tau0, "ridge": ridge}.items():
        require_positive(name, "contrastive", positive)
    if not tau0 <= tau_max < math.inf:
        raise ValueError(f"`tau_max` of contrastive must be at least tau0 = {tau0} and finite. Got {tau_max}.")
    rows = jnp.asarray(synthetic(characters, drawings, d, seed) if features is None else features, float)
    if test_features is None:
        held = max(1, len(rows) // 4)
        rows, test = (rows[:-held], rows[-held:]) if len(rows) - held > 1 else (rows, rows)
    else:
        test = jnp.asarray(test_features, float)
    data = Drawings(rows, Bounds(*(jnp.asarray(a, float) for a in (tau0, tau_max, rho))))
    given = parts(tau0, tau_max, ridge)
    problem = Problem(
        sample_context=draw_anchor, sample_conditional=drawing(negatives), data=data, inverse=NO_INVERSE, **given
    )
    asked = stored(problem, given, random.key(seed))

    def metrics(x: X) -> dict[str, float]:
        tau = temperatures(asked, x)
        return {
            "accuracy": float(nearest_mean(x, test)),
            "temperature": float(tau.mean()),
            "at_bound": float((tau <= tau0 * (1 + 1e-5)).mean()),
        }

    return Application(problem, first(rows.shape[2], width, dim, random.key(seed)), metrics)


def stored(problem: Problem, given: dict[str, Any], key: Key) -> Problem:
    """The problem on a few anchors, each with one set of negatives."""
    xis = jax.vmap(problem.context)(random.split(key, ASKED))
    etas = jax.vmap(problem.conditional)(random.split(random.fold_in(key, 1), ASKED), xis)
    return from_arrays(contexts=xis, outcomes=etas[:, None], **given)


@program()
def _temperatures(problem: Problem, x: X) -> jax.Array:
    return jnp.asarray(every_answer(problem, x))


def temperatures(problem: Problem, x: X) -> np.ndarray:
    """tau of every stored anchor."""
    return np.asarray(_temperatures(problem, x))
