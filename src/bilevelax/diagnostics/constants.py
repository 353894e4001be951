"""Measured constants of the lower level: mu_g, per-sample L_g1, and how they vary."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree

from bilevelax.base.compiling import jit_solves
from bilevelax.base.errors import require_integer, require_key
from bilevelax.base.text_table import Table, as_text, number
from bilevelax.core.problem import Key, Problem, X, Y
from bilevelax.diagnostics.contexts import context_number, count_contexts, takes_every
from bilevelax.diagnostics.host import in_groups
from bilevelax.diagnostics.solved import solved, units
from bilevelax.exact.curvature import LANCZOS_STEPS, ritz_matrix
from bilevelax.exact.draws import halves, samples_of
from bilevelax.exact.sample_average import of_stack_in_blocks
from bilevelax.problems.little import little_work
from bilevelax.problems.validate import as_arrays, check_shapes

PER_CONTEXT = 16  # single samples looked at in each context and point
SLACK = 0.1  # by how much half of the samples may change mu_g
FARTHER = "Not farther away, curvature {}: another minimum may lie there, so y* depends on init_y"
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
    mu_far: float = math.inf  # smallest curvature farther away, at other contexts' answers or as far as y is large

    @property
    def strongly_convex(self) -> bool:
        return self.mu_g > 0

    @property
    def bends_far(self) -> bool:
        """Whether E g surely is not convex everywhere, though it may be where y* was found."""
        return self.mu_far < 0

    @property
    def missing(self) -> float:
        """Curvature that a penalty must add before the lower level is convex at all."""
        return max(0.0, -self.mu_g)

    def __str__(self) -> str:
        rows = [
            ["mu_g", number(self.mu_g), *map(number, self.mu_spread), "Hessian of E g, over contexts"],
            ["L_g1", number(self.L_g1), *map(number, self.L_spread), "Hessians of single samples"],
        ]
        table = Table("", ("constant", "measured", "lowest", "median", "highest", "of"), rows)
        return f"{self.verdict()}\n{as_text(table)}"

    def verdict(self) -> str:
        """One line: is the lower level strongly convex, and what is missing if not."""
        few = f"the mean of {self.samples} samples has less curvature than E g; raise `samples`."
        if self.strongly_convex:
            kappa, doubt = self.L_g1 / self.mu_g, f" mu_g may be larger: {few}" if self.mu_high == math.inf else ""
            far = f" {FARTHER.format(number(self.mu_far))}." if self.bends_far else ""
            known = f"Strongly convex in y where it was looked at; condition number L_g1 / mu_g = {kappa:.3g}."
            return known + doubt + far
        if self.mu_high > 0:
            return f"Strongly convex in y or not, it cannot be told: smallest curvature {self.mu_g:.3g}, but {few}"
        return (
            f"NOT strongly convex in y: smallest curvature {self.mu_g:.3g}. A penalty must add more than "
            f"{self.missing:.3g}: raise lam by that in (lam / 2) |y - y0|^2, by half of it in lam |y - y0|^2."
        )


@jit_solves(little_work, static_argnames=("every", "samples"))
def _matrices(
    key: Key, problem: Problem, x: X, lanes: tuple[jax.Array, Y, Y], every: bool, samples: int
) -> tuple[jax.Array, jax.Array]:
    """Of some contexts, their y* and those of others, at three points and one farther away: `ritz_matrix` of means over
    samples, and of single samples.
    """
    known = problem.support is not None

    def one(i: jax.Array, solved: Y, other: Y) -> tuple[jax.Array, jax.Array]:
        xi = context_number(i, key, problem, every)
        key_eta, key_y, key_r = (random.fold_in(random.fold_in(key, i), role) for role in (1, 2, 3))
        etas, weights = samples_of(key_eta, problem, xi, samples)
        several = jnp.stack([weights] if known else [weights, *halves(samples)])
        n = min(samples, PER_CONTEXT)
        alone = problem.conditionals(key_eta, xi, n) if known else etas  # known ones may end in padding
        numbered = jax.tree.map(lambda a: a[:n], alone), jnp.arange(n)  # eta may hold no array to map over
        start, unravel = ravel_pytree(problem.start(x, xi))
        best = ravel_pytree(solved)[0]
        best = jnp.where(jnp.isfinite(best), best, start)
        push = random.normal(key_y, start.shape, start.dtype)
        near = best + push / jnp.linalg.norm(push) * jnp.linalg.norm(best - start) / 2
        far = jnp.where(i % 2 == 0, best + push * units(best, start), ravel_pytree(other)[0])
        far = (start + best) / 2 if problem.constraint is not None else far  # inside its set

        def at(y: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = unravel(y)
            matrix = lambda hessian: ritz_matrix(hessian, y, key_r, LANCZOS_STEPS)
            mean = lambda weights: matrix(of_stack_in_blocks(problem, x, xi, etas, weights).hess_g(y))
            return jax.vmap(mean)(several), lax.map(lambda a: matrix(problem.linear_hess_g(x, y, a[0], xi)), numbered)

        return lax.map(at, jnp.stack([start, best, near, far]))

    return jax.vmap(one)(*lanes)


def _extremes(matrices: Any) -> np.ndarray:
    """(smallest, largest) eigenvalue of symmetric matrices, last axis; not numbers where they are not."""
    A = np.asarray(matrices, np.float64)
    A = (A + A.swapaxes(-1, -2)) / 2
    finite = np.asarray(np.isfinite(A).all((-1, -2)))
    values = np.linalg.eigvalsh(np.where(finite[..., None, None], A, 0.0))
    return np.where(finite[..., None], values[..., [0, -1]], np.nan)


def smallest_eigenvalues(matrices: Any) -> np.ndarray:
    """Of symmetric matrices; not numbers where they are not."""
    return _extremes(matrices)[..., 0]


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
    check_shapes(problem, x)
    return measured_at(
        solved(key, problem, x, contexts, samples, answers_only=True).y, problem, x, key, contexts, samples
    )


def measured_at(
    y: Y, problem: Problem, x: X, key: Key, contexts: int, samples: int, numbers: np.ndarray | None = None
) -> Constants:
    """`constants`, given the answers that `solved` finds with this key, and these numbers."""
    d_y = sum(math.prod(a.shape[1:]) for a in jax.tree.leaves(y))
    M, every = count_contexts(problem, contexts), takes_every(problem, contexts)
    numbers = np.arange(M, dtype=np.int32) if numbers is None else numbers
    lanes = numbers, y, jax.tree.map(lambda a: np.roll(a, 1, 0), y)
    matrices = in_groups(lambda lanes: _matrices(key, problem, x, lanes, every, samples), lanes, M)
    (mean, single), far = (_extremes(each[:, :3]) for each in matrices), _extremes(matrices[0][:, 3])
    mu, L = mean[..., 0, 0], single[..., 1]
    high = _highest(mean[..., 0], float(L.max()), samples, d_y) if problem.support is None else mu.min()
    spread = lambda a: Spread(float(a.min()), float(np.median(a)), float(a.max()))
    lowest = float(single[..., 0].min())
    return Constants(
        float(mu.min()), float(L.max()), spread(mu), spread(L), lowest, len(numbers), samples, float(high), _bend(far)
    )


def _bend(far: np.ndarray) -> float:
    """The smallest curvature of contexts where all samples and both halves say that it is negative; else infinity."""
    surely = (far[..., 0] < -FLAT * np.abs(far).max(-1)).all(-1)
    return float(np.min(far[surely, 0, 0], initial=np.inf))


def _highest(mu: np.ndarray, L: float, samples: int, d_y: int) -> float:
    """What mu_g may be, from the smallest eigenvalues with all samples and with each half of them, last axis.

    Noise of eta lowers them by n^(-1/2), or by 1/n where the smallest is alone: the slower of the two is assumed.
    """
    whole, half = mu[..., 0], mu[..., 1:].min(-1)
    settled = ~(whole - half > SLACK * np.abs(whole)) & (samples > 1)  # also where g is not finite
    settled &= (samples > d_y) | (np.abs(whole) > FLAT * L)  # a mean of n Hessians of rank one has rank n
    return float(np.where(settled, whole + (whole - half) / (np.sqrt(2) - 1), np.inf).min())
