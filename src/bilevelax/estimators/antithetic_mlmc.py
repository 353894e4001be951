"""Unbiased multilevel gradient over sample-average problems, with antithetic differences."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax import trees
from bilevelax.draws import Draws, Range, average_of, in_memory, kept, with_replacement, without_replacement
from bilevelax.errors import require_choice, require_integer, require_positive, require_share
from bilevelax.estimate import Cost, Count, Estimate, Estimator, Levels, first_of_split, stateless, visit
from bilevelax.estimators._levels import draw_level, group_starts, level_probabilities
from bilevelax.estimators.saa import F_SAMPLES
from bilevelax.newton import LinearSolver, direct_or_cg
from bilevelax.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.sample_average import Average, Response, Solver, newton_solver, respond_from_start, respond_on

MOST = 30  # sample numbers stay below 2^30: with the default n0 and exponent a level beyond has probability below 1e-12


class Settings(NamedTuple):
    """The arguments of `antithetic_mlmc`, filled in."""

    n0: int
    levels: int
    keep: bool  # in memory what a level draws; impossible where levels have no end
    exact_top: bool
    f_samples: str
    solver: Solver
    linear: LinearSolver
    probabilities: tuple[float, ...]
    factor: int = 2

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each level."""
        return tuple(self.n0 * self.factor**level for level in range(self.levels + 1))


Pair = tuple[Draws, Draws]  # the samples of g and those of f; one and the same unless f has its own


def _pair(key: Key, problem: Problem, xi: Xi, settings: Settings) -> Pair:
    draw = without_replacement if settings.exact_top else with_replacement
    key_g, key_f = random.split(key)
    draws = draw(key_g, problem, xi)
    return draws, draws if settings.f_samples == "same" else draw(key_f, problem, xi)


def _size(level: Any, draws: Draws, settings: Settings) -> tuple[Any, int | None]:
    """(samples of a level, a bound of it known at compile time)."""
    known = isinstance(level, int)
    level = level if known else jnp.maximum(level, 0)  # vectorised, a lane of level 0 computes what it throws away
    size: Any = settings.sizes[level] if known else jnp.asarray(settings.sizes, jnp.int32)[level]
    if draws.rows is None:
        return size, size if known else None
    top = level == settings.levels
    bound = (draws.rows if top else min(size, draws.rows)) if known else None
    return jnp.where(top, draws.total, jnp.minimum(size, draws.total)), bound


def _average(samples: Range, pair: Pair, problem: Problem, x: X, xi: Xi, settings: Settings) -> Average:
    """The problem on a range of samples, whose exact hypergradient is Phi."""
    of_g, of_f = (average_of(draws, problem, x, xi, samples, settings.n0) for draws in pair)
    return of_g if settings.f_samples == "same" else of_g._replace(grad_f=of_f.grad_f)


def _drawn(size: Any, settings: Settings) -> Cost:
    return Cost(eta=size if settings.f_samples == "same" else 2 * size)


class Base(NamedTuple):
    """Phi_0, and what a correction of it needs."""

    estimate: Estimate
    key: Key
    xi: Xi
    y: Y
    first: jax.Array  # the gradient norm that the solver's tolerance is relative to


def _base(key: Key, problem: Problem, x: X, settings: Settings) -> Base:
    """Phi_0: the sample-average gradient on n0 samples."""
    key_xi, _, key_0, key_delta = random.split(key, 4)
    xi = problem.context(key_xi)
    pair = _pair(key_0, problem, xi, settings)
    size, bound = _size(0, pair[0], settings)
    average = _average(Range(0, size, bound), pair, problem, x, xi, settings)
    response = respond_from_start(average, problem, x, xi, settings.solver, settings.linear)
    y, *_ = solution = response.solution
    aux = {"level": jnp.zeros((), jnp.int32), "lower_grad_norm": solution.grad_norm}
    cost = Cost(xi=1) + _drawn(size, settings) + response.cost
    return Base(Estimate(response.grad, cost, aux, visit(xi, y)), key_delta, xi, y, solution.first)


def difference(level: Any, base: Base, pair: Pair, problem: Problem, x: X, settings: Settings) -> tuple[X, Cost]:
    """Delta_l = Phi_l(all) - the mean of Phi_{l-1} over the `factor` groups that they split into, and its cost.

    The fine solve starts from the solution of Phi_0, coarse ones from the fine solution, or, where they take
    turns, from the one before; all of them reach the gradient norm that was asked of Phi_0.
    """
    size, bound = _size(level, pair[0], settings)
    part, part_bound = _size(level - 1, pair[0], settings)

    def phi(start: Any, size: Any, bound: int | None, y: Y) -> Response:
        average = _average(Range(start, size, bound), pair, problem, x, base.xi, settings)
        return respond_on(average, y, settings.solver, settings.linear, base.first)

    starts = group_starts(size, part, settings.factor)
    if bound is not None:
        fine = phi(0, size, bound, base.y)
        coarse = jax.vmap(lambda start: phi(start, part, part_bound, fine.solution.y))(starts)
        responses = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), fine, coarse)
    else:  # one program for all of them, which take their turns

        def turn(y: Y, samples: tuple[Any, Any]) -> tuple[Y, Response]:
            response = phi(*samples, None, y)
            return response.solution.y, response

        ranges = jnp.concatenate([starts[:1], starts]), jnp.where(jnp.arange(settings.factor + 1) == 0, size, part)
        _, responses = lax.scan(turn, base.y, ranges)

    grad = jax.tree.map(lambda a: a[0] - jnp.mean(a[1:], axis=0), responses.grad)
    cost = jax.tree.map(lambda a: jnp.sum(a, axis=0, dtype=jnp.int32), responses.cost)
    return grad, cost + _drawn(size, settings)


def _corrected(level: Any, base: Base, pair: Pair, problem: Problem, x: X, settings: Settings) -> Estimate:
    """Phi_0 + Delta_l / p_l."""
    grad, cost = difference(level, base, pair, problem, x, settings)
    weight = 1 / jnp.asarray(settings.probabilities, dtype=float)[level]
    aux = {**base.estimate.aux, "level": jnp.asarray(level, jnp.int32)}
    return base.estimate._replace(
        grad=trees.add_scale(base.estimate.grad, weight, grad), cost=base.estimate.cost + cost, aux=aux
    )


def _at_traced_level(level: jax.Array, base: Base, problem: Problem, x: X, settings: Settings) -> Estimate:
    def correct() -> Estimate:
        pair = _pair(base.key, problem, base.xi, settings)
        if settings.keep and not settings.exact_top:
            blocks, most = (
                jnp.asarray(settings.sizes, jnp.int32)[level] // settings.n0,
                settings.factor**settings.levels,
            )
            g, f = (kept(draws, blocks, settings.n0, most) for draws in pair)
            pair = g, g if settings.f_samples == "same" else f
        return _corrected(level, base, pair, problem, x, settings)

    return lax.cond(level == 0, lambda: base.estimate, correct)


def _at_level(level: Count, key: Key, problem: Problem, x: X, settings: Settings) -> Estimate:
    return _at_traced_level(jnp.asarray(level, jnp.int32), _base(key, problem, x, settings), problem, x, settings)


def _draw_together(known: tuple[int, ...], base: Base, problem: Problem, settings: Settings) -> tuple[Eta, Eta]:
    """All samples of the known levels in one call, lane after lane: a sampler is slow to compile."""
    sizes = [settings.sizes[level] if level else 0 for level in known]
    lane = jnp.asarray(np.repeat(np.arange(len(known)), sizes), jnp.int32)
    number = jnp.asarray(np.concatenate([np.arange(size) for size in sizes]), jnp.int32)
    xi = base.xi
    keys = jax.vmap(random.split)(base.key)

    def draw(lane: jax.Array, number: jax.Array, role: int) -> Eta:
        return problem.conditional(random.fold_in(keys[lane, role], number), jax.tree.map(lambda a: a[lane], xi))

    g = jax.vmap(partial(draw, role=0))(lane, number)
    return g, g if settings.f_samples == "same" else jax.vmap(partial(draw, role=1))(lane, number)


def _known_levels(known: tuple[int, ...], base: Base, problem: Problem, x: X, settings: Settings) -> list[Estimate]:
    """The estimates of stacked lanes, one vectorised call for each level."""
    together = known[0] > 0 and not settings.exact_top
    etas = _draw_together(known, base, problem, settings) if together else ()
    parts, start, read = [], 0, 0
    for level in sorted(set(known), reverse=True):
        lanes, n = known.count(level), settings.sizes[level]
        here = jax.tree.map(lambda a: a[start : start + lanes], base)  # noqa: B023 (used at once)
        mine = jax.tree.map(lambda a: a[read : read + lanes * n].reshape(lanes, n, *a.shape[1:]), etas if level else ())  # noqa: B023
        start, read = start + lanes, read + lanes * n

        def correct(base: Base, etas: Any, level: int = level) -> Estimate:
            drawn = (in_memory(etas[0]), in_memory(etas[1])) if etas else _pair(base.key, problem, base.xi, settings)
            return _corrected(level, base, drawn, problem, x, settings)

        parts.append(jax.vmap(correct)(here, mine) if level else here.estimate)
    return parts


def _at_levels(
    known: tuple[int, ...], rest: jax.Array, keys: Key, problem: Problem, x: X, settings: Settings
) -> Estimate:
    """Many estimates: Phi_0 of all in one vectorised call, then the corrections."""
    base = jax.vmap(lambda key: _base(key, problem, x, settings))(keys)
    lanes = lambda start, stop: jax.tree.map(lambda a: a[start:stop], base)
    parts = _known_levels(known, lanes(0, len(known)), problem, x, settings) if known else []
    if len(rest):
        one = lambda lane: _at_traced_level(lane[0], lane[1], problem, x, settings)
        parts.append(lax.map(one, (rest, lanes(len(known), None))))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def antithetic_mlmc(
    n0: int = 8,
    levels: int | None = 6,
    correction_rate: float = 0.1,
    exponent: float = 1.5,
    solver: Solver | None = None,
    linear_solver: LinearSolver | None = None,
    f_samples: str = "same",
    exact_top: bool = False,
    factor: int = 2,
) -> Estimator:
    r"""Antithetic multilevel Monte Carlo over sample-average problems.

    .. math::
        \Phi_0 + 1\{l \ge 1\} \Delta_l / p_l, \qquad \Delta_l = \Phi_l(\text{all } n_0 2^l) -
        \tfrac12 [\Phi_{l-1}(\text{first half}) + \Phi_{l-1}(\text{second half})]

    :math:`\Phi_l` is `saa` on :math:`n_0 2^l` samples, all of one context; those of
    :math:`\Delta_l` are fresh. It is a smooth function of the empirical measure, so the first
    order cancels: :math:`E|\Delta_l|^2` falls as :math:`2^{-2l}` while the cost grows as
    :math:`2^l`, and :math:`p_l \propto 2^{-1.5 l}` has finite variance and O(1) expected samples.
    The mean is that of ``saa(n0 * 2**levels)``; without truncation, the gradient of F itself. The
    number of sequential steps does not grow with the level, and no mu_g, L_g1, beta0 or N is needed.

    With ``factor`` M instead of 2 a level has M times the samples of the one before and :math:`\Delta_l`
    takes away the mean of M groups: it is the sum of :math:`\log_2 M` halvings at once, each averaged
    over all the groups there are. Fewer, larger and rarer corrections: the sum of
    :math:`\sqrt{V_l C_l}` over all levels, which the cost of having no bias depends on, falls from 3.4 (M = 2) to 2.4
    (4), 2.1 (8) and 1.8 (16) times that of one halving.

    Args:
        n0: samples of level 0: about 8 for low-dimensional y, 16 for d_y = 64, 32 for 512.
        levels: the deepest; None for no end: samples are drawn again, block by block, wherever
            they are needed, and nothing is stored.
        correction_rate: r, the probability of a correction.
        exponent: of p_l, proportional to factor^{-exponent l}; between 1 and 2 where levels have no end.
        solver, linear_solver, f_samples: as in `saa`.
        exact_top: for a problem with ``support``: samples of a context are drawn without
            replacement and the deepest level takes all of them, which removes the truncation. Choose
            ``levels`` such that n0 factor^levels is about the number of outcomes.
        factor: M, samples of a level over those of the one before. With 8, take ``levels`` a third as large.
    """
    _check(n0, levels, correction_rate, exponent, f_samples, exact_top, factor)
    n0, factor = int(n0), int(factor)
    deepest = int((MOST - (n0 - 1).bit_length()) / np.log2(factor)) if levels is None else int(levels)
    settings = Settings(
        n0=n0,
        levels=deepest,
        keep=levels is not None,
        exact_top=exact_top,
        f_samples=f_samples,
        solver=solver or newton_solver(),
        linear=linear_solver or direct_or_cg(),
        probabilities=level_probabilities(deepest, correction_rate, exponent, factor),
        factor=factor,
    )
    parts = Levels(
        first=0,
        probabilities=settings.probabilities,
        draw=partial(draw_level, probabilities=settings.probabilities),
        at_level=partial(_at_level, settings=settings),
        at_levels=partial(_at_levels, settings=settings),
    )

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        return parts.at_level(parts.draw(random.split(key, 4)[1]), key, problem, x)

    return stateless(estimate, parts, contexts=first_of_split(4))


def _check(
    n0: int, levels: int | None, rate: float, exponent: float, f_samples: str, exact_top: bool, factor: int
) -> None:
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
    if int(n0) * int(factor) ** deepest > 1 << MOST:
        name, value = ("n0", n0) if levels is None else ("levels", levels)
        raise ValueError(
            f"`{name}` of antithetic_mlmc must keep n0 * {factor}**{levels or 1} within 2**{MOST}. Got {value!r}."
        )
