"""Other inverse Hessians: linear solvers on the mean Hessian of some samples, and the whole Neumann series."""

from __future__ import annotations

import jax.numpy as jnp
from optax import tree

from bilevelax.base.errors import require_integer
from bilevelax.core import trees
from bilevelax.core.estimate import Cost
from bilevelax.core.inverse import AHEAD, InverseHessian, check_series, series_constants
from bilevelax.core.lower import for_draws
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.exact.linear import LinearSolver, cg, direct


def _on_samples(n: int, linear: LinearSolver) -> InverseHessian:
    """``linear`` on the mean Hessian of n samples, linearised once for all its products."""

    def apply(key: Key, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[Y, Cost]:
        eta = problem.conditionals(key, xi, n), jnp.full(n, 1 / n)
        solution, products = linear(problem.weighted().linear_hess_g(x, y, eta, xi), r)
        return solution, Cost(eta=n, hess_g=n * products)

    return apply


def conjugate_gradient(n: int = 32, steps: int = 10) -> InverseHessian:
    """At most ``steps`` of CG on the mean Hessian of n samples: no L_g1, bias O(1/n), none where g has no noise."""
    require_integer("n", "conjugate_gradient", n, 1)
    require_integer("steps", "conjugate_gradient", steps, 1)
    return _on_samples(n, cg(steps))


def dense(n: int = 32) -> InverseHessian:
    """The mean Hessian of n samples as a matrix, solved directly: for small d_y and for tests."""
    require_integer("n", "dense", n, 1)
    return _on_samples(n, direct())


def summed_neumann(N: int | None = None, L: float | None = None, scale: float = 0.5) -> InverseHessian:
    """The whole series on one path of N - 1 samples: the mean of `neumann`, without its factor N of variance."""
    check_series("summed_neumann", N, L, scale)

    def apply(key: Key, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[Y, Cost]:
        terms, h = series_constants("summed_neumann", problem, N, L, scale)

        def multiply(eta: Eta, carry: tuple[Y, Y]) -> tuple[Y, Y]:
            r, total = carry
            r = trees.add_scale(r, -h, problem.hess_g(x, y, eta, xi, r))
            return r, tree.add(total, r)

        _, total = for_draws(key, problem, xi, terms - 1, AHEAD, multiply, (r, r), unroll=1) if terms > 1 else (r, r)
        return trees.scale(h, total), Cost(eta=terms - 1, hess_g=terms - 1)

    return apply
