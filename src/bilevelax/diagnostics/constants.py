"""Measured constants of the lower level: mu_g, per-sample L_g1, and how they vary."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree

from bilevelax.compiling import jit_once
from bilevelax.curvature import extreme_eigenvalues
from bilevelax.diagnostics.reference import LANES, context_number, count_contexts, halves, samples_of
from bilevelax.diagnostics.tables import number, text_table
from bilevelax.errors import require_integer, require_key
from bilevelax.problem import Key, Problem, X
from bilevelax.sample_average import newton_cg
from bilevelax.validate import as_arrays, check_shapes

STEPS = 32  # of Lanczos: exact for d_y up to that
PER_CONTEXT = 16  # single samples looked at in each context and point
SLACK = 0.1  # by how much half of the samples may change mu_g
FLAT = 1e-3  # relative to L_g1: no curvature at all


class Spread(NamedTuple):
    """How a constant varies over contexts (or samples) and points."""

    low: float
    median: float
    high: float


class Constants(NamedTuple):
    """What `constants` measured; ``mu_g`` and ``L_g1`` are the worst values seen."""

    mu_g: float  # smallest eigenvalue of the Hessian of E g in y
    L_g1: float  # largest eigenvalue of a single sample's Hessian
    mu_spread: Spread  # over contexts and points
    L_spread: Spread  # over samples, contexts and points
    sample_mu: float  # smallest eigenvalue of a single sample's Hessian
    contexts: int
    samples: int
    mu_high: float  # what mu_g may be: its samples of eta make it low; infinite where they are too few to tell

    @property
    def strongly_convex(self) -> bool:
        return self.mu_g > 0

    @property
    def missing(self) -> float:
        """Curvature that a penalty must add before the lower level is convex at all."""
        return max(0.0, -self.mu_g)

    def __str__(self) -> str:
        rows = [
            ["mu_g", number(self.mu_g), *map(number, self.mu_spread), "Hessian of E g, over contexts"],
            ["L_g1", number(self.L_g1), *map(number, self.L_spread), "Hessians of single samples"],
        ]
        table = text_table(["constant", "measured", "lowest", "median", "highest", "of"], rows)
        return f"{self.verdict()}\n{table}"

    def verdict(self) -> str:
        """One line: is the lower level strongly convex, and what is missing if not."""
        few = f"the mean of {self.samples} samples has less curvature than E g; raise `samples`."
        if self.strongly_convex:
            kappa, doubt = self.L_g1 / self.mu_g, f" mu_g may be larger: {few}" if self.mu_high == math.inf else ""
            return f"Strongly convex in y where it was looked at; condition number L_g1 / mu_g = {kappa:.3g}.{doubt}"
        if self.mu_high > 0:
            return f"Strongly convex in y or not, it cannot be told: smallest curvature {self.mu_g:.3g}, but {few}"
        return (
            f"NOT strongly convex in y: smallest curvature {self.mu_g:.3g}. A penalty must add more than "
            f"{self.missing:.3g}: raise lam by that in (lam / 2) |y - y0|^2, by half of it in lam |y - y0|^2."
        )


@jit_once(static_argnames=("contexts", "samples"))
def _measure(key: Key, problem: Problem, x: X, contexts: int, samples: int) -> tuple[jax.Array, jax.Array]:
    """(of the mean over all samples and over each half of them, of single samples): extreme eigenvalues."""
    mean, known = problem.weighted(), problem.support is not None

    def one(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        xi = context_number(i, key, problem, contexts)
        key_eta, key_y, key_r = random.split(random.fold_in(random.fold_in(key, i), 1), 3)
        etas, weights = samples_of(key_eta, problem, xi, samples)
        several = jnp.stack([weights] if known else [weights, *halves(samples)])
        n = min(samples, PER_CONTEXT)
        alone = problem.conditionals(key_eta, xi, n) if known else etas  # known ones may end in padding
        numbered = jax.tree.map(lambda a: a[:n], alone), jnp.arange(n)  # eta may hold no array to map over
        y0 = problem.start(x, xi)
        flat, unravel = ravel_pytree(y0)
        solved = ravel_pytree(newton_cg(mean, x, xi, (etas, weights), y0).y)[0]
        solved = jnp.where(jnp.isfinite(solved), solved, flat)
        push = random.normal(key_y, flat.shape, flat.dtype)
        near = solved + push / jnp.linalg.norm(push) * jnp.linalg.norm(solved - flat) / 2

        def at(y: jax.Array) -> tuple[jax.Array, jax.Array]:
            of = lambda problem, eta: lambda r: ravel_pytree(problem.hess_g(x, unravel(y), eta, xi, unravel(r)))[0]
            ends = lambda product: extreme_eigenvalues(product, random.normal(key_r, flat.shape, flat.dtype), STEPS)
            of_mean = jax.vmap(lambda weights: ends(of(mean, (etas, weights))))(several)
            return of_mean, lax.map(lambda each: ends(of(problem, each[0])), numbered)

        return lax.map(at, jnp.stack([flat, solved, near]))

    return lax.map(one, jnp.arange(contexts, dtype=jnp.int32), batch_size=min(contexts, LANES))


def constants(problem: Problem, x: X, *, key: Key, contexts: int = 16, samples: int = 64) -> Constants:
    """mu_g and per-sample L_g1 at x, measured over contexts at y_1^0, at y* and at a random point near y*.

    Eigenvalues are those of 32 steps of Lanczos on Hessian-vector products, exact for d_y up to 32.
    They are extremes over what was looked at: elsewhere mu_g may be smaller and L_g1 larger. Where
    looked at, mu_g may be larger: the smallest eigenvalue of a mean of n samples is low on
    average, e.g. by a factor of about 1 - 2 sqrt(d_y / n) for Hessians a a' with normal a. How much half
    of the samples lower it tells: ``mu_high`` is mu_g without that, infinite where it is above 10 %.

    Args:
        contexts: how many are looked at; all of them where there are no more.
        samples: draws of eta averaged for mu_g (all outcomes where the problem knows them); up to
            16 are looked at alone for L_g1.
    """
    require_key("constants", key)
    require_integer("contexts", "constants", contexts, 1)
    require_integer("samples", "constants", samples, 1)
    x = as_arrays("x", "constants", x)
    d_y = sum(math.prod(a.shape) for a in jax.tree.leaves(check_shapes(problem, x).y))
    M = count_contexts(problem, contexts)
    mean, single = (np.asarray(a, np.float64) for a in _measure(key, problem, x, M, samples))
    mu, L = mean[..., 0, 0], single[..., 1]
    high = _highest(mean[..., 0], float(L.max()), samples, d_y) if problem.support is None else mu.min()
    spread = lambda a: Spread(float(a.min()), float(np.median(a)), float(a.max()))
    lowest = float(single[..., 0].min())
    return Constants(float(mu.min()), float(L.max()), spread(mu), spread(L), lowest, M, samples, float(high))


def _highest(mu: np.ndarray, L: float, samples: int, d_y: int) -> float:
    """What mu_g may be, from the smallest eigenvalues with all samples and with each half of them, last axis.

    Noise of eta lowers them by n^(-1/2), or by 1/n where the smallest is alone: the slower of the two is assumed.
    """
    whole, half = mu[..., 0], mu[..., 1:].min(-1)
    settled = ~(whole - half > SLACK * np.abs(whole)) & (samples > 1)  # also where g is not finite
    settled &= (samples > d_y) | (np.abs(whole) > FLAT * L)  # a mean of n Hessians of rank one has rank n
    return float(np.where(settled, whole + (whole - half) / (np.sqrt(2) - 1), np.inf).min())
