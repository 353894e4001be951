"""Double-loop gradient: solve the follower's problem by K epochs, then correct (Section 2, eq. 6)."""

from __future__ import annotations

from jax import random

from bilevelax.core.double_loop import DoubleLoop
from bilevelax.core.estimate import Cost, Estimate, Estimator, first_of_split, stateless
from bilevelax.core.inverse import InverseHessian
from bilevelax.core.lower import LowerSolver
from bilevelax.core.problem import Key, Problem, X


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
    loops = DoubleLoop(K, lower, inverse, batch).checked("dl_sgd")

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        key_xi, _, key_y, key_v = random.split(key, 4)
        xi = problem.context(key_xi)
        y = loops.solver(problem)(key_y, problem, x, xi, K)
        grad, cost = loops.gradient(key_v, problem, x, y.last, xi)
        return Estimate(grad, Cost(xi=1) + y.cost + cost, {})

    return stateless(estimate, settings=loops, contexts=first_of_split(4), generic=True)
