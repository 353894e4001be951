"""Estimates of (E grad^2_22 g)^{-1} r, the implicit part of a hypergradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.base.errors import require_choice, require_integer, require_positive
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Count
from bilevelax.core.lower import kept_draws
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y

# (key, problem, x, y, xi, r) -> (Lambda_hat r, oracle calls). None for Lambda_hat r means that
# the implicit term is left out. Equal keys give equal draws at every y.
InverseHessian = Callable[[Key, Problem, X, Y, Xi, Y], tuple[Any, Cost]]


class WithDraws(NamedTuple):
    """An inverse Hessian that draws once for many y: ``apply(draw(key, problem, x, xi), problem, x, y, xi, r)``."""

    draw: Callable[[Key, Problem, X, Xi], Any]
    apply: Callable[[Any, Problem, X, Y, Xi, Y], tuple[Any, Cost]]

    def __call__(self, key: Key, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[Any, Cost]:
        return self.apply(self.draw(key, problem, x, xi), problem, x, y, xi, r)


AHEAD = 16  # samples drawn at once along a product
RELATIVE_BIAS = 0.01  # of the default N, in the direction of curvature mu_g


def default_N(mu_g: float, L: float, scale: float = 0.5) -> int:
    """Smallest N with (1 - scale mu_g / L)^N <= 1 %, the relative bias of the series cut at N."""
    rate = 1 - scale * mu_g / L
    return 1 if rate <= 0 else max(1, math.ceil(math.log(RELATIVE_BIAS) / math.log(rate)))


def series_constants(owner: str, problem: Problem, N: int | None, L: float | None, scale: float) -> tuple[int, float]:
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


def check_series(owner: str, N: int | None, L: float | None, scale: float) -> None:
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
    check_series("neumann", N, L, scale)

    def draw(key: Key, problem: Problem, x: X, xi: Xi) -> tuple[Any, Callable[[Count], Eta]]:
        """(n_hat, n -> eta_n): where y is large they are drawn before the product, for all y at once."""
        terms, _ = series_constants("neumann", problem, N, L, scale)
        key_n, key_eta = random.split(key)
        n_hat = random.randint(key_n, (), 0, terms, jnp.int32)
        if problem.is_small(x, xi):
            return n_hat, lambda n: problem.conditional(random.fold_in(key_eta, n), xi)
        etas = kept_draws(key_eta, problem, xi, n_hat, min(AHEAD, terms), terms)
        return n_hat, lambda n: jax.tree.map(lambda a: a[n], etas)

    def apply(draws: Any, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[Y, Cost]:
        terms, h = series_constants("neumann", problem, N, L, scale)
        n_hat, eta = draws
        multiply = lambda n, r: trees.add_scale(r, -h, problem.hess_g(x, y, eta(n), xi, r))
        product = lax.fori_loop(0, n_hat, multiply, r)
        return trees.scale(terms * h, product), Cost(eta=n_hat, hess_g=n_hat)

    return cast(InverseHessian, WithDraws(draw, apply))


def none() -> InverseHessian:
    """Leave the implicit term out: right where grad_2 f vanishes at y* (Danskin), and for plain SGD."""

    def apply(key: Key, problem: Problem, x: X, y: Y, xi: Xi, r: Y) -> tuple[None, Cost]:
        return None, Cost()

    return apply


def inverse_of(problem: Problem, inverse: InverseHessian | None) -> InverseHessian:
    """The given estimate, else the problem's own, else the Neumann series."""
    return inverse or problem.inverse or neumann()
