"""The hypergradient estimate at a given lower-level point."""

from __future__ import annotations

import jax
from jax import random
from optax import tree

from bilevelax.estimate import Cost
from bilevelax.inverse import InverseHessian
from bilevelax.problem import Key, Problem, X, Xi, Y


def hypergradient(
    key: Key, problem: Problem, x: X, y: Y, xi: Xi, inverse: InverseHessian, batch: int = 1
) -> tuple[X, Cost]:
    r"""v-hat of eq. (6) at y (Algorithm 4). Equal keys give equal draws at every y.

    .. math::
        \nabla_1 f(x, y; \eta'', \xi)
        - \nabla^2_{12} g(x, y; \eta', \xi) \, \hat\Lambda \, \nabla_2 f(x, y; \eta'', \xi)

    ``batch`` samples are averaged in each draw of eta', eta'' and eta_n; 1 is the paper.
    """
    problem = problem.averaged(batch)
    keys = random.split(key, 3)
    draws = jax.vmap(lambda key: problem.conditional(key, xi))(keys[:2])  # together: a sampler is slow to compile
    eta_f, eta_g = (jax.tree.map(lambda a: a[i], draws) for i in range(2))  # noqa: B023 (used at once)
    grad_x, grad_y = problem.grad_f(x, y, eta_f, xi)
    r, cost = inverse(keys[2], problem, x, y, xi, grad_y)
    if r is None:
        return grad_x, Cost(eta=batch, grad_f=batch)
    implicit = problem.cross_g(x, y, eta_g, xi, r)
    return tree.sub(grad_x, implicit), (cost + Cost(eta=2, grad_f=1, cross_g=1)).times(batch)
