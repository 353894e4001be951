"""MAML: differentiate through m gradient steps on the follower's problem."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax, random

from bilevelax.base.errors import require_integer, require_positive, require_unconstrained
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Count, Estimate, Estimator, first_of_split, stateless
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y


def adapt(key: Key, problem: Problem, x: X, xi: Xi, m: int, gamma: float, first_order: bool = False) -> Y:
    """y_m: m steps of size gamma on g from y_0 = init_y(x, xi); step j draws from (key, j).

    With ``first_order`` the steps are constants to a derivative in x, so that dy_m = dy_0.
    """

    def step(y: Y, j: Count) -> tuple[Y, None]:
        grad = problem.grad_g(x, y, problem.conditional(random.fold_in(key, j), xi), xi)
        return trees.add_scale(y, -gamma, lax.stop_gradient(grad) if first_order else grad), None

    return lax.scan(step, problem.start(x, xi), jnp.arange(m, dtype=jnp.int32))[0]


def maml(m: int = 1, gamma: float = 0.1, first_order: bool = False, batch: int = 1) -> Estimator:
    r"""One-step and m-step MAML: the gradient in x of f(x, y_m(x); eta, xi).

    .. math::
        y_0 = y_1^0(x, \xi), \quad y_k = y_{k-1} - \gamma \nabla_2 g(x, y_{k-1}; \eta_k, \xi)

    It minimises E f(x, y_m(x)) and not F, whatever its steps: a bias that RT-MLMC has not. On
    ``g = l(y) + lam/2 |y - x|^2`` from y_0 = x, one step of gamma = 1/lam is the paper's MAML.
    This estimator unrolls, so it differentiates by itself instead of through `Problem`.

    Args:
        m: gradient steps.
        gamma: their size.
        first_order: leave out second derivatives (FOMAML): grad_1 f + (dy_0/dx)^T grad_2 f.
        batch: samples averaged in each gradient, of f and of g.
    """
    require_integer("m", "maml", m, 1)
    require_positive("gamma", "maml", gamma)
    require_integer("batch", "maml", batch, 1)

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        require_unconstrained("maml", problem)
        key_xi, key_y, key_f = random.split(key, 3)
        xi = problem.context(key_xi)
        problem = problem.averaged(batch)
        eta: Eta = problem.conditional(key_f, xi)

        def loss(x: X) -> jax.Array:
            return problem.f(x, adapt(key_y, problem, x, xi, m, gamma, first_order), eta, xi)

        seconds = 0 if first_order else m  # the reverse of a step is one product with g22 and one with g12
        calls = Cost(eta=m + 1, grad_f=1, grad_g=m, hess_g=seconds, cross_g=seconds)
        return Estimate(jax.grad(loss)(x), Cost(xi=1) + calls.times(batch), {})

    return stateless(estimate, contexts=first_of_split(3), generic=True)
