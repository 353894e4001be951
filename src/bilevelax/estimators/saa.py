"""Sample-average gradient: the exact hypergradient of the problem on n samples per context."""

from __future__ import annotations

from typing import Any

from jax import random

from bilevelax.base.errors import require_choice, require_integer
from bilevelax.core.estimate import Cost, Estimate, Estimator, first_of_split, stateless, visit
from bilevelax.core.problem import Key, Problem, X, Xi
from bilevelax.exact.draws import Range, average_of, with_replacement
from bilevelax.exact.linear import LinearSolver
from bilevelax.exact.sample_average import Average, Solver, few_passes, newton_solver, of_all, respond_from_start

F_SAMPLES = ("same", "fresh")


def sample_average(key: Key, problem: Problem, x: X, xi: Xi, n: Any, f_samples: str) -> tuple[Average, Cost]:
    """The problem on n samples of a context (or all of its outcomes), and what drawing them costs."""
    if n == "all":
        average = of_all(problem, x, xi)
        return average, Cost(xi=1, eta=average.size)
    key_g, key_f = random.split(key)
    average = average_of(with_replacement(key_g, problem, xi), problem, x, xi, Range(0, n, n), n)
    if f_samples == "same":
        return average, Cost(xi=1, eta=n)
    others = average_of(with_replacement(key_f, problem, xi), problem, x, xi, Range(0, n, n), n)
    return average._replace(grad_f=others.grad_f), Cost(xi=1, eta=2 * n)


def saa(
    n: int | str = 32,
    solver: Solver | None = None,
    linear_solver: LinearSolver | None = None,
    f_samples: str = "same",
) -> Estimator:
    r"""SAA: solve the lower level on n samples of one context and differentiate that solution exactly.

    .. math::
        \nabla_1 \bar f - \nabla^2_{12} \bar g \, (\nabla^2_{22} \bar g)^{-1} \nabla_2 \bar f
        \quad\text{at}\quad \bar y = \arg\min_y \bar g(x, y), \qquad \bar g = \frac1n \sum_j g(x, y; \eta_j, \xi)

    No constants are needed. Its bias is of order 1/n, which `antithetic_mlmc` removes. Use it as
    ``minibatch(saa(n), m)``: m contexts are solved together, vectorised.

    Args:
        n: samples of each context; ``"all"`` takes every outcome of a problem with ``support``,
            or of rows on disk block by block, and the only randomness left is the context.
        solver: of the lower level; by default `newton_solver()`, damped Newton with CG.
        linear_solver: of the adjoint system, on the same mean Hessian; by default direct for d_y
            up to 16, else CG to a relative error of 7e-5 in single and 4e-10 in double precision.
        f_samples: ``"same"``: f is averaged over the samples of g. Where eta is a pair (train,
            test) drawn independently, its parts are separate samples already. ``"fresh"``: over n
            others, for an f that reads the same part of eta as g.
    """
    if isinstance(n, str) and n != "all":
        raise ValueError(f"`n` of saa must be an integer >= 1, or 'all' for every outcome. Got {n!r}.")
    if not isinstance(n, str):
        require_integer("n", "saa", n, 1)
    require_choice("f_samples", "saa", f_samples, F_SAMPLES)

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        key_xi, key_y = random.split(key)
        xi = problem.context(key_xi)
        average, drawn = sample_average(key_y, problem, x, xi, n, f_samples)
        usual = few_passes() if n == "all" and problem.blocks is not None else (newton_solver(), None)
        solvers = solver or usual[0], linear_solver or usual[1]
        response = respond_from_start(average, problem, x, xi, *solvers)
        aux = {**response.watched(), "newton_steps": response.solution.iterations}
        return Estimate(response.grad, drawn + response.cost, aux, visit(xi, response.solution.y))

    return stateless(estimate, contexts=first_of_split(2), generic=True)
