"""Unbiased multilevel gradient over sample-average problems, with antithetic differences."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from optax import tree

from bilevelax.base.errors import require_choice, require_integer, require_positive, require_share
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Count, Estimate, Estimator, first_of_split, stateless, visit
from bilevelax.core.levels import Levels, geometric
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.estimators.saa import F_SAMPLES
from bilevelax.exact.draws import Draws, Range, average_of, kept, with_replacement, without_replacement
from bilevelax.exact.linear import LinearSolver
from bilevelax.exact.sample_average import Average, Response, Solver, newton_solver, respond_from_start, respond_on

FEW, MANY = 32, 64  # n0 for a small y, where a solve costs little more than its samples, and for a larger one
BITS = 30  # sample numbers stay below 2^30: with the default n0 and exponent a level beyond has probability below 1e-12


def level_probabilities(levels: int, correction_rate: float, exponent: float, factor: int = 2) -> tuple[float, ...]:
    """p_0 = 1 - r, and p_l proportional to factor^{-exponent l} with sum r for l = 1..levels."""
    return (1 - correction_rate, *(correction_rate * geometric(levels, float(factor) ** -exponent)).tolist())


def group_starts(size: Any, part: Any, factor: int) -> jax.Array:
    """Where ``factor`` groups of ``part`` samples begin, spread evenly over ``size``; no product exceeds 32 bits."""
    groups = jnp.arange(factor, dtype=jnp.int32)
    step, rest = jnp.divmod(jnp.asarray(size - part, jnp.int32), factor - 1)
    return step * groups + rest * groups // (factor - 1)


class Antithetic(NamedTuple):
    """The arguments of `antithetic_mlmc`, filled in."""

    n0: int | None
    levels: int
    keep: bool  # in memory what a level draws; impossible where levels have no end
    exact_top: bool
    f_samples: str
    solver: Solver
    linear: LinearSolver | None
    probabilities: tuple[float, ...]
    factor: int = 2

    def on(self, problem: Problem, x: X) -> Antithetic:
        """The same with the n0 that suits the size of y, where none was given."""
        if self.n0 is not None:
            return self
        small = problem.is_small(x, jax.eval_shape(problem.context, random.key(0)))
        return self._replace(n0=FEW if small else MANY)

    @property
    def block(self) -> int:
        """n0, once it is known: samples are drawn in blocks of as many."""
        assert self.n0 is not None
        return self.n0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each level."""
        return tuple(self.block * self.factor**level for level in range(self.levels + 1))


SamplesOfBoth = tuple[Draws, Draws]  # the samples of g and those of f; one and the same unless f has its own


def _pair(key: Key, problem: Problem, xi: Xi, settings: Antithetic) -> SamplesOfBoth:
    draw = without_replacement if settings.exact_top else with_replacement
    key_g, key_f = random.split(key)
    draws = draw(key_g, problem, xi)
    return draws, draws if settings.f_samples == "same" else draw(key_f, problem, xi)


class Size(NamedTuple):
    """Samples of a level, and a bound of them that is the same for all lanes that climb together."""

    own: Any
    most: Any


def _size(level: Count, top: Count, draws: Draws, settings: Antithetic) -> Size:
    """Of a level, where the highest one around is ``top``."""
    if draws.rows is None:
        return Size(_samples(level, settings), _samples(top, settings))
    most = jnp.where(top == settings.levels, draws.rows, jnp.minimum(_samples(top, settings), draws.rows))
    own = jnp.where(level == settings.levels, draws.total, jnp.minimum(_samples(level, settings), draws.total))
    return Size(own, most)


def _samples(level: Count, settings: Antithetic) -> jax.Array:
    """n0 factor^level; a lane of level 0 that climbs with others computes what it throws away."""
    return jnp.asarray(settings.sizes, jnp.int32)[jnp.maximum(level, 0)]


def _average(samples: Range, pair: SamplesOfBoth, problem: Problem, x: X, xi: Xi, settings: Antithetic) -> Average:
    """The problem on a range of samples, whose exact hypergradient is Phi."""
    of_g, of_f = (average_of(draws, problem, x, xi, samples, settings.block) for draws in pair)
    return of_g if settings.f_samples == "same" else of_g._replace(grad_f=of_f.grad_f)


def _drawn(size: Any, settings: Antithetic) -> Cost:
    return Cost(eta=size if settings.f_samples == "same" else 2 * size)


class Lane(NamedTuple):
    """One estimate on its way: Phi_0, what a correction of it needs, and the correction once it has climbed."""

    estimate: Estimate
    key: Key
    xi: Xi
    y: Y
    correction: tuple[X, Cost]


def start(key: Key, problem: Problem, x: X, settings: Antithetic) -> Lane:
    """Phi_0: the sample-average gradient on n0 samples."""
    settings = settings.on(problem, x)
    n0 = settings.block
    key_xi, _, key_0, key_delta = random.split(key, 4)
    xi = problem.context(key_xi)
    pair = _pair(key_0, problem, xi, settings)
    total, rows = pair[0].total, pair[0].rows
    size = n0 if rows is None else jnp.minimum(n0, total)
    samples = Range(0, size, n0 if rows is None else min(n0, rows))
    average = _average(samples, pair, problem, x, xi, settings)
    response = respond_from_start(average, problem, x, xi, settings.solver, settings.linear)
    y = response.solution.y
    aux = {"level": jnp.zeros((), jnp.int32), **response.watched()}
    cost = Cost(xi=1) + _drawn(size, settings) + response.cost
    nothing = tree.zeros_like(response.grad), tree.zeros_like(response.cost)
    return Lane(Estimate(response.grad, cost, aux, visit(xi, y)), key_delta, xi, y, nothing)


def climb(level: Count, lane: Lane, problem: Problem, x: X, top: Count | None, settings: Antithetic) -> Lane:
    """Delta_l and its cost; nothing to do where no lane around is above level 0."""
    settings = settings.on(problem, x)
    level = jnp.asarray(level, jnp.int32)
    top = level if top is None else top

    def correct() -> tuple[X, Cost]:
        pair = _kept(_pair(lane.key, problem, lane.xi, settings), top, settings)
        return difference(level, top, lane, pair, problem, x, settings)

    return lane._replace(correction=lax.cond(top == 0, lambda: lane.correction, correct))


def _kept(pair: SamplesOfBoth, top: Count, settings: Antithetic) -> SamplesOfBoth:
    """The same samples, drawn once and kept in memory where levels have an end."""
    if settings.exact_top or not settings.keep:
        return pair
    blocks, most = _samples(top, settings) // settings.block, settings.factor**settings.levels
    g, f = (kept(draws, blocks, settings.block, most) for draws in pair)
    return g, g if settings.f_samples == "same" else f


def difference(
    level: Count, top: Count, lane: Lane, pair: SamplesOfBoth, problem: Problem, x: X, settings: Antithetic
) -> tuple[X, Cost]:
    """Delta_l = Phi_l(all) - the mean of Phi_{l-1} over the `factor` groups that they split into, and its cost.

    The solves take turns, each from the solution of the one before, the first from that of Phi_0.
    """
    whole, part = (_size(level - down, top - down, pair[0], settings) for down in (0, 1))

    def turn(y: Y, samples: Range) -> tuple[Y, Response]:
        average = _average(samples, pair, problem, x, lane.xi, settings)
        response = respond_on(average, y, settings.solver, settings.linear)
        return response.solution.y, response

    starts = group_starts(whole.own, part.own, settings.factor)
    fine = jnp.arange(settings.factor + 1) == 0
    sizes = (jnp.where(fine, whole.own, part.own), jnp.where(fine, whole.most, part.most))
    _, responses = lax.scan(turn, lane.y, Range(jnp.concatenate([starts[:1], starts]), *sizes))

    grad = jax.tree.map(lambda a: a[0] - jnp.mean(a[1:], axis=0), responses.grad)
    cost = jax.tree.map(lambda a: jnp.sum(a, axis=0, dtype=jnp.int32), responses.cost)
    return grad, cost + _drawn(whole.own, settings)


def finish(level: Count, lane: Lane, problem: Problem, x: X, settings: Antithetic) -> Estimate:
    """Phi_0 + Delta_l / p_l, or Phi_0 alone at level 0."""
    base, (delta, cost) = lane.estimate, lane.correction
    level = jnp.asarray(level, jnp.int32)
    weight = jnp.where(level == 0, 0, 1 / jnp.asarray(settings.probabilities, dtype=float)[level])
    corrected = trees.add_scale(base.grad, weight, delta)
    return base._replace(
        grad=tree.where(level == 0, base.grad, corrected),
        cost=base.cost + tree.where(level == 0, tree.zeros_like(cost), cost),
        aux={**base.aux, "level": level},
    )


def antithetic_mlmc(
    n0: int | None = None,
    levels: int | None = 2,
    correction_rate: float = 0.006,
    exponent: float = 1.5,
    solver: Solver | None = None,
    linear_solver: LinearSolver | None = None,
    f_samples: str = "same",
    exact_top: bool = False,
    factor: int = 8,
) -> Estimator:
    r"""Antithetic multilevel Monte Carlo over sample-average problems.

    .. math::
        \Phi_0 + 1\{l \ge 1\} \Delta_l / p_l, \qquad \Delta_l = \Phi_l(\text{all } n_0 M^l) -
        \tfrac1M \sum_{i=1}^M \Phi_{l-1}(\text{group } i \text{ of them})

    :math:`\Phi_l` is `saa` on :math:`n_0 M^l` samples, all of one context, where M is ``factor``; those of
    :math:`\Delta_l` are fresh. It is a smooth function of the empirical measure, so the first
    order cancels: :math:`E|\Delta_l|^2` falls as :math:`M^{-2l}` while the cost grows as
    :math:`M^l`, and :math:`p_l \propto M^{-1.5 l}` has finite variance and O(1) expected samples.
    The mean is that of ``saa(n0 * factor**levels)``; without truncation, the gradient of F itself. The
    number of sequential steps does not grow with the level, and no mu_g, L_g1, beta0 or N is needed.

    A difference of M groups is the sum of :math:`\log_2 M` halvings at once, each averaged over all the groups there
    are. Corrections become fewer, larger and rarer: the sum of :math:`\sqrt{V_l C_l}` over all levels, which the cost
    of having no bias depends on, falls from 3.4 (M = 2) to 2.4 (4), 2.1 (8) and 1.8 (16) times that of one halving.
    Where the rate is not the best one by a factor of 3, work x variance grows by a third at most; `correction_rate`
    measures the best on a problem.

    Args:
        n0: samples of level 0; by default 32 for a y of up to 64 numbers, else 64.
        levels: the deepest; None for no end: samples are drawn again, block by block, wherever
            they are needed, and nothing is stored.
        correction_rate: r, the probability of a correction.
        exponent: of p_l, proportional to factor^{-exponent l}; between 1 and 2 where levels have no end.
        solver, linear_solver, f_samples: as in `saa`.
        exact_top: for a problem with ``support``: samples of a context are drawn without
            replacement and the deepest level takes all of them, which removes the truncation. Choose
            ``levels`` such that n0 factor^levels is about the number of outcomes.
        factor: M, samples of a level over those of the one before. With 2, take ``levels`` three times as large.
    """
    _check(n0, levels, correction_rate, exponent, f_samples, exact_top, factor)
    n0, factor = None if n0 is None else int(n0), int(factor)
    deepest = int((BITS - ((n0 or MANY) - 1).bit_length()) / np.log2(factor)) if levels is None else int(levels)
    settings = Antithetic(
        n0=n0,
        levels=deepest,
        keep=levels is not None,
        exact_top=exact_top,
        f_samples=f_samples,
        solver=solver or newton_solver(),
        linear=linear_solver,
        probabilities=level_probabilities(deepest, correction_rate, exponent, factor),
        factor=factor,
    )
    parts = Levels(
        first=0,
        probabilities=settings.probabilities,
        start=partial(start, settings=settings),
        climb=partial(climb, settings=settings),
        finish=partial(finish, settings=settings),
    )
    return stateless(parts.estimate, parts, contexts=first_of_split(4), generic=True)


def _check(
    n0: int | None, levels: int | None, rate: float, exponent: float, f_samples: str, exact_top: bool, factor: int
) -> None:
    n0 = MANY if n0 is None else n0
    require_integer("n0", "antithetic_mlmc", n0, 1)
    require_integer("factor", "antithetic_mlmc", factor, 2)
    if levels is not None:
        require_integer("levels", "antithetic_mlmc", levels, 1)
    require_positive("exponent", "antithetic_mlmc", exponent)
    require_choice("f_samples", "antithetic_mlmc", f_samples, F_SAMPLES)
    require_share("correction_rate", "antithetic_mlmc", rate, one=True)
    if levels is None and not 1 < exponent < 2:
        raise ValueError(
            f"`exponent` of antithetic_mlmc must lie between 1 and 2 where levels=None: below, the expected cost is "
            f"infinite, above, the variance. Got {exponent!r}."
        )
    if levels is None and exact_top:
        raise ValueError("`exact_top` of antithetic_mlmc needs a deepest level: give `levels` an integer. Got None.")
    deepest = 1 if levels is None else int(levels)
    if int(n0) * int(factor) ** deepest > 1 << BITS:
        name, value = ("n0", n0) if levels is None else ("levels", levels)
        raise ValueError(
            f"`{name}` of antithetic_mlmc must keep n0 * {factor}**{levels or 1} within 2**{BITS}. Got {value!r}."
        )
