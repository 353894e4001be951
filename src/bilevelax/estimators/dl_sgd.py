"""Double-loop gradient: solve the follower's problem by K epochs, then correct (Section 2, eq. 6)."""

from __future__ import annotations

from jax import random

from bilevelax.errors import require_integer
from bilevelax.estimate import Cost, Estimate, Estimator, first_of_split, stateless
from bilevelax.estimators.rt_mlmc import Settings
from bilevelax.hypergradient import hypergradient
from bilevelax.inverse import InverseHessian, inverse_of
from bilevelax.lower import LowerSolver, lower_of
from bilevelax.problem import Key, Problem, X


def dl_sgd(
    K: int = 6, lower: LowerSolver | None = None, inverse: InverseHessian | None = None, batch: int = 1
) -> Estimator:
    """DL-SGD: v^{K+1}, eq. (6) at y_{K+1}^0, at the cost of 2^{K+1} - 2 lower steps.

    The paper calls this v^K but its own telescoping sum ends at v^{K+1}; here v^j is always
    evaluated at y_j^0, so that `rt_mlmc(K)` has exactly this mean.

    Args:
        K: epochs of the lower solver.
        lower: lower solver; by default the problem's own, else `epoch_sgd()`.
        inverse: inverse-Hessian estimate; by default the problem's own, else `neumann()`.
        batch: samples averaged in each draw of the hypergradient; 1 is the paper.
    """
    require_integer("K", "dl_sgd", K, 1)
    require_integer("batch", "dl_sgd", batch, 1)

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        key_xi, _, key_y, key_v = random.split(key, 4)
        xi = problem.context(key_xi)
        y = lower_of(problem, lower)(key_y, problem, x, xi, K)
        grad, cost = hypergradient(key_v, problem, x, y.last, xi, inverse_of(problem, inverse), batch)
        return Estimate(grad, Cost(xi=1) + y.cost + cost, {})

    return stateless(estimate, settings=Settings(K, lower, inverse, batch), contexts=first_of_split(4))
