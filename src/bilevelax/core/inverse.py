"""Estimates of (E grad^2_22 g)^{-1} r, the implicit part of a hypergradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import random
from optax import tree

from bilevelax import trees
from bilevelax.errors import require_choice, require_integer, require_positive
from bilevelax.estimate import Cost
from bilevelax.lower import for_draws
from bilevelax.newton import LinearSolver, cg, direct
from bilevelax.problem import Eta, Key, Problem, X, Xi, Y

# (key, problem, x, y, xi, r) -> (Lambda_hat r, oracle calls). None for Lambda_hat r means that
# the implicit term is left out. Equal keys give equal draws at every y.
InverseHessian = Callable[[Key, Problem, X, Y, Xi, Y], tuple[Any, Cost]]

BLOCK = 32  # samples drawn at once along a product
TINY = 256  # up to this size of y a block costs more than it saves
SMALL = 2048  # what is done with a y up to this size is better vectorised; with a larger one, done one by one
RELATIVE_BIAS = 0.01  # of the default N, in the direction of curvature mu_g


def default_N(mu_g: float, L: float, scale: float = 0.5) -> int:
    """Smallest N with (1 - scale mu_g / L)^N <= 1 %, the relative bias of the series cut at N."""
    rate = 1 - scale * mu_g / L
    return 1 if rate <= 0 else max(1, math.ceil(math.log(RELATIVE_BIAS) / math.log(rate)))


def _constants(owner: str, problem: Problem, N: int | None, L: float | None, scale: float) -> tuple[int, float]:
    """(N, step), where step = scale / L is both the step and the factor of the series."""
    L = problem.L_g1 if L is None else L
    if L is None:
        raise ValueError(f"{owner} needs the smoothness constant L_g1. Set it on the problem: Problem(..., L_g1=...).")
    if N is None:
        if problem.mu_g is None:
            raise ValueError(
                f"`N` of {owner} must be given, or Problem(..., mu_g=...) from which it follows. Got neither."
            )
        N = default_N(problem.mu_g, L, scale)
    return N, scale / L


def _check_neumann(owner: str, N: int | None, L: float | None, scale: float) -> None:
    if N is not None:
        require_integer("N", owner, N, 1)
    require_positive("L", owner, L, optional=True)
    require_choice("scale", owner, scale, (0.5, 1.0))


def neumann(N: int | None = None, L: float | None = None, scale: float = 0.5) -> InverseHessian:
    r"""Randomised Neumann series, eq. (5), with n_hat uniform on {0, ..., N-1}.

    .. math::
        \hat\Lambda r = N h \prod_{n=1}^{\hat n} (I - h \nabla^2_{22} g(x, y; \eta_n, \xi)) r, \quad
        E \hat\Lambda = h \sum_{n=0}^{N-1} (I - h E \nabla^2_{22} g)^n, \quad h = \text{scale} / L

    Args:
        N: terms of the series; by default enough for 1 % of bias, from mu_g and L_g1.
        L: bound of the per-sample Hessians; by default ``problem.L_g1``.
        scale: 0.5 is eq. (5), 1.0 is Algorithm 4; for step and factor alike (mixing them
            tends to twice the inverse).
    """
    _check_neumann("neumann", N, L, scale)

    def apply(key: Key, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[Y, Cost]:
        terms, h = _constants("neumann", problem, N, L, scale)
        key_n, key_eta = random.split(key)
        n_hat = random.randint(key_n, (), 0, terms, jnp.int32)

        def multiply(eta: Eta, r: Y) -> Y:
            return trees.add_scale(r, -h, problem.hess_g(x, y, eta, xi, r))

        block = 1 if tree.size(r) <= TINY else min(BLOCK, terms)
        product = for_draws(key_eta, problem, xi, n_hat, block, multiply, r, unroll=1)
        return trees.scale(terms * h, product), Cost(eta=n_hat, hess_g=n_hat)

    return apply


def summed_neumann(N: int | None = None, L: float | None = None, scale: float = 0.5) -> InverseHessian:
    """The whole series on one path of N - 1 samples: the mean of `neumann`, without its factor N of variance."""
    _check_neumann("summed_neumann", N, L, scale)

    def apply(key: Key, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[Y, Cost]:
        terms, h = _constants("summed_neumann", problem, N, L, scale)

        def multiply(eta: Eta, carry: tuple[Y, Y]) -> tuple[Y, Y]:
            r, total = carry
            r = trees.add_scale(r, -h, problem.hess_g(x, y, eta, xi, r))
            return r, tree.add(total, r)

        _, total = for_draws(key, problem, xi, terms - 1, BLOCK, multiply, (r, r), unroll=1) if terms > 1 else (r, r)
        return trees.scale(h, total), Cost(eta=terms - 1, hess_g=terms - 1)

    return apply


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


def none() -> InverseHessian:
    """Leave the implicit term out: right where grad_2 f vanishes at y* (Danskin), and for plain SGD."""

    def apply(key: Key, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[None, Cost]:
        return None, Cost()

    return apply


def inverse_of(problem: Problem, inverse: InverseHessian | None) -> InverseHessian:
    """The given estimate, else the problem's own, else the Neumann series."""
    return inverse or problem.inverse or neumann()
