"""Implicit MAML: adapt on a fixed batch, then solve for the adjoint by conjugate gradients."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax, random
from optax import tree

from bilevelax.base.errors import require_integer, require_positive, require_unconstrained
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Count, Estimate, Estimator, first_of_split, stateless
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y
from bilevelax.exact.linear import cg
from bilevelax.exact.sample_average import newton_cg


def _adapt(problem: Problem, x: X, xi: Xi, eta: Eta, steps: int | None, gamma: float | None) -> tuple[Y, Cost]:
    """The follower's answer on one fixed eta and its cost: gradient steps, or tight where ``steps`` is None."""
    start = problem.start(x, xi)
    if steps is None:
        solution = newton_cg(problem, x, xi, eta, start)
        return solution.y, Cost(grad_g=solution.gradients, hess_g=solution.products)
    size = gamma or (0.1 if problem.L_g1 is None else 1 / problem.L_g1)

    def step(_: Count, y: Y) -> Y:
        return trees.add_scale(y, -size, problem.grad_g(x, y, eta, xi))

    return lax.fori_loop(0, steps, step, start), Cost(grad_g=steps)


def imaml(n: int = 32, steps: int | None = 16, gamma: float | None = None, cg_steps: int = 5) -> Estimator:
    r"""iMAML for any contextual bilevel problem.

    .. math::
        \nabla_1 f(x, y) - \nabla^2_{12} g(x, y) \, r, \quad \nabla^2_{22} g(x, y) \, r = \nabla_2 f(x, y)

    where y minimises the mean of g over n samples, the same that give both second derivatives,
    and f is the mean over n others. With ``g = l(y) + lam/2 |y - x|^2`` this is
    (I + H/lam)^{-1} grad f, as iMAML is usually written; no damping is added. The error left
    when both solves are tight (``steps=None``, large ``cg_steps``) is that of n samples.

    Args:
        n: samples in the adaptation batch, and in that of f.
        steps: gradient steps on the adaptation batch; None solves it tightly by Newton-CG.
        gamma: their size; by default 1/L_g1 where the problem knows it, else 0.1.
        cg_steps: most products in the adjoint solve; it stops early at rounding level.
    """
    require_integer("n", "imaml", n, 1)
    if steps is not None:
        require_integer("steps", "imaml", steps, 1)
    require_positive("gamma", "imaml", gamma, optional=True)
    require_integer("cg_steps", "imaml", cg_steps, 1)

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        require_unconstrained("imaml", problem)
        key_xi, key_g, key_f = random.split(key, 3)
        xi = problem.context(key_xi)
        problem = problem.averaged(n)
        eta = problem.conditional(key_g, xi)
        y, cost = _adapt(problem, x, xi, eta, steps, gamma)

        grad_x, grad_y = problem.grad_f(x, y, problem.conditional(key_f, xi), xi)
        tol = float(jnp.finfo(tree.dtype(grad_y, "highest")).eps)
        r, products = cg(cg_steps, tol)(lambda r: problem.hess_g(x, y, eta, xi, r), grad_y)
        grad = tree.sub(grad_x, problem.cross_g(x, y, eta, xi, r))
        cost = cost + Cost(eta=2, grad_f=1, hess_g=products, cross_g=1)
        return Estimate(grad, Cost(xi=1) + cost.times(n), {})

    return stateless(estimate, contexts=first_of_split(3), generic=True)
