"""The leader's expected cost F(x): all of it where it is stored, else an estimate without the bias of order 1/n."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from bilevelax.base.compiling import program
from bilevelax.base.effective import ROUNDING, least_of, participating
from bilevelax.base.errors import require_integer, require_key, require_share
from bilevelax.base.quantiles import student
from bilevelax.core.problem import Key, Problem, X, Xi, Y
from bilevelax.exact.draws import halves, samples_of
from bilevelax.exact.respond import answered, require_answer
from bilevelax.exact.sample_average import ROWS_A_BLOCK, of_all, of_stack_in_blocks, tight_solver
from bilevelax.exact.unsolved import tell
from bilevelax.problems.validate import as_arrays, check_shapes

EVALUATED_AT_ONCE = 32  # contexts solved at once
ROWS_AT_ONCE = 16_384  # samples that they add up at once
CONTEXTS = 1000  # looked at by default, in all
FEW_CONTEXTS = 4 * CONTEXTS  # contexts that are all looked at by default, twice where their outcomes must be drawn
TRUSTED = 2  # times F's size or spread: larger corrections are not of the order that they assume
STORED = 16_384  # contexts with stored outcomes that are all looked at by default


class Evaluation(NamedTuple):
    """F(x) with its confidence interval: a single number where all contexts and outcomes are stored."""

    mean: float
    low: float
    high: float
    stderr: float
    n: int


class Plan(NamedTuple):
    """Which contexts are looked at."""

    n: int
    each: int = 0  # context number i so many times; 0: contexts are drawn
    exact: bool = False  # every context and every outcome


def plan_of(problem: Problem, n: int | None) -> Plan:
    """All contexts where n allows it: then they are no source of noise."""
    M = problem.n_contexts
    if M is None or problem.source is not None:
        return Plan(n or CONTEXTS)
    if (problem.support or problem.blocks) is not None and (n or STORED) >= M:
        return Plan(M, 1, exact=True)
    if n is None and M <= FEW_CONTEXTS:
        n = M * max(2, -(-CONTEXTS // M))
    each, rest = divmod(n or CONTEXTS, M)
    return Plan(n or CONTEXTS, each if not rest and each > 1 else 0)


class Cost(NamedTuple):
    """f at a context's answer: as it is, without its bias, and whether the answers behind both were found."""

    plain: jax.Array
    debiased: jax.Array
    solved: jax.Array
    halves_solved: jax.Array


def context_of(key: Key, problem: Problem, i: jax.Array, numbered: bool) -> tuple[Xi, Key, Key]:
    """Context of evaluation i, the key of its answer and that of the cost."""
    key_xi, key_y, key_f = random.split(random.fold_in(key, i), 3)
    xi = problem.nth_context(i % problem.n_contexts) if numbered else problem.context(key_xi)
    return xi, key_y, key_f


def cost_of(key_y: Key, key_f: Key, problem: Problem, x: X, xi: Xi, samples: int) -> Cost:
    r"""The answer on all samples, and on their halves: 2 f(y) - (f(y') + f(y'')) / 2, paid on the same other draws.

    An answer on n samples costs :math:`F + c/n + O(1/n^2)`, on n/2 of them :math:`F + 2c/n + ...`.
    """
    if problem.blocks is not None:
        average = of_all(problem, x, xi)
        y, found = answered(key_y, problem, x, xi, samples)
        return Cost(*(average.f(y),) * 2, *(found,) * 2)
    etas, weights = samples_of(key_y, problem, xi, samples)
    stored, start = problem.support is not None, problem.start(x, xi)
    parts = weights[None] if stored or samples < 2 else jnp.stack([weights, *halves(samples)])

    def answer(weights: jax.Array) -> tuple[Y, jax.Array]:
        solution = tight_solver(start)(of_stack_in_blocks(problem, x, xi, etas, weights), start)
        finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(solution.y)]
        return solution.y, solution.solved & jnp.stack(finite).all()

    ys, solved = lax.map(answer, parts)
    paid = (etas, weights) if stored else (problem.conditionals(key_f, xi, samples), jnp.full(samples, 1 / samples))
    f = lax.map(of_stack_in_blocks(problem, x, xi, *paid).f, ys)
    return Cost(f[0], f[0] if len(parts) == 1 else 2 * f[0] - (f[1] + f[2]) / 2, solved[0], jnp.all(solved))


@program(static_argnames=("n", "numbered", "samples"))
def _costs(key: Key, problem: Problem, x: X, n: int, numbered: bool, samples: int) -> Cost:
    """Of each evaluation."""

    def one(i: jax.Array) -> Cost:
        xi, key_y, key_f = context_of(key, problem, i, numbered)
        return cost_of(key_y, key_f, problem, x, xi, samples)

    at_once = min(n, EVALUATED_AT_ONCE, ROWS_AT_ONCE // min(samples, ROWS_A_BLOCK))
    found: Cost = lax.map(one, jnp.arange(n), batch_size=at_once)
    return found


def evaluate(
    problem: Problem, x: X, *, key: Key, n: int | None = None, samples: int = 256, level: float = 0.95
) -> Evaluation:
    """F(x), eq. (1): exact where all contexts and outcomes are stored, else an estimate with an interval.

    Each of n contexts is answered on ``samples`` draws of eta and pays on as many others. The bias of order
    1/samples that such answers leave in F is removed by those of the two halves of the draws; what is left is of
    order 1/samples^2. The interval is that of the mean over contexts.

    Args:
        problem: with ``n_contexts`` and ``support``, as of `from_arrays`, F is computed on everything that there is.
        x: where.
        key: a JAX random key.
        n: contexts in all. By default 1000, of finitely many contexts a multiple of their number: each is then
            looked at equally often, and only the draws of eta are random. F of stored contexts and outcomes is
            exact where n is None (up to 16,384 contexts) or not below their number.
        samples: draws of eta for each answer.
        level: of the interval, two-sided.
    """
    require_key("evaluate", key)
    if n is not None:
        require_integer("n", "evaluate", n, 2)
    require_integer("samples", "evaluate", samples, 1)
    require_share("level", "evaluate", level)
    x = as_arrays("x", "evaluate", x)
    check_shapes(problem, x)
    plan = plan_of(problem, n)
    found = jax.tree.map(np.asarray, _costs(key, problem, x, plan.n, bool(plan.each), samples))
    if problem.constraint is not None and not found.solved.all():
        xi, key_y, _ = context_of(key, problem, jnp.asarray(int(np.argmin(found.solved))), bool(plan.each))
        require_answer("evaluate", xi, answered(key_y, problem, x, xi, samples)[0], False)
    tell("evaluate", 1 - float(found.solved.mean()), "its contexts")
    trusted = halves_tell(found)
    if found.solved.all() and not trusted:
        warnings.warn(
            f"evaluate leaves in F the bias of answers on {samples} draws: on half of them the follower answers "
            "another question, or none. Raise `samples`.",
            stacklevel=2,
        )
    costs = np.asarray(found.debiased if trusted else found.plain, np.float64)
    tell_of_rare_contexts(costs, plan, float(jnp.finfo(found.plain.dtype).eps))
    return interval(costs, plan, level)


def tell_of_rare_contexts(costs: np.ndarray, plan: Plan, eps: float) -> None:
    """A warning where few of the contexts drawn carry the noise: what was not met is not in the interval."""
    squares = (costs - costs.mean()) ** 2
    if plan.exact or plan.each or not squares.max() > (ROUNDING * eps * np.abs(costs).max()) ** 2:
        return
    if (effective := participating(squares)) < least_of(plan.n):
        warnings.warn(
            f"The interval of evaluate may be too short: few of {plan.n} contexts carry the noise, {effective:.1f} "
            "effective ones. Raise `n`, or draw rare contexts more often and weight f.",
            RuntimeWarning,
            stacklevel=3,
        )


def halves_tell(found: Cost) -> bool:
    """Whether the halves were answered, and so that what they correct is small: else 1/samples is not the order."""
    plain, debiased = np.asarray(found.plain, np.float64), np.asarray(found.debiased, np.float64)
    rounding = float(jnp.finfo(found.plain.dtype).eps)
    small = abs(np.mean(debiased - plain)) <= TRUSTED * (abs(plain.mean()) + plain.std()) + rounding
    return bool(found.halves_solved.all() and small)


def interval(costs: np.ndarray, plan: Plan, level: float) -> Evaluation:
    """The mean of the costs and Student's interval; where contexts are all there, only what is left inside them."""
    mean = float(costs.mean())
    if plan.exact:
        return Evaluation(mean, mean, mean, 0.0, plan.n)
    if plan.each:
        rows = costs.reshape(plan.each, -1)
        stderr, freedom = float(np.sqrt(rows.var(0, ddof=1).mean() / len(costs))), len(costs) - rows.shape[1]
    else:
        stderr, freedom = float(costs.std(ddof=1) / np.sqrt(len(costs))), len(costs) - 1
    reach = student(freedom, (1 + level) / 2) * stderr
    return Evaluation(mean, mean - reach, mean + reach, stderr, plan.n)
