"""Lower solvers beside EpochSGD, with the same levels: a running mean, any optax optimizer, none at all."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax import lax, random
from optax import tree

from bilevelax.base.errors import require_integer, require_positive
from bilevelax.core import trees
from bilevelax.core.estimate import Count, State
from bilevelax.core.lower import BLOCK, LowerSolver, for_draws, power_of_two
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y


def averaged_step(step_size: float = 1.0, block: int = BLOCK) -> LowerSolver:
    """y_{k+1}^0 = y_1^0 - step_size * mean of grad_2 g(y_1^0) over the 2^{k+1}-2 draws so far.

    Exact where the Hessian of g in y is I / step_size (a lower level that is a mean): the
    running sample mean, which is what `conditional_stochastic` uses.
    """
    require_positive("step_size", "averaged_step", step_size)

    def init(problem: Problem, x: X, xi: Xi) -> State:
        y = problem.start(x, xi)
        return y, tree.zeros_like(y), y

    def epoch(key: Key, problem: Problem, x: X, xi: Xi, state: State, k: Count) -> tuple[State, Count]:
        start, total, _ = state
        n = power_of_two(k)

        def add(eta: Eta, total: Y) -> Y:
            return tree.add(total, problem.grad_g(x, start, eta, xi))

        total = for_draws(random.fold_in(key, k), problem, xi, n, block, add, total)
        y = trees.add_scale(start, -step_size / jnp.asarray(2 * n - 2).astype(float), total)
        return (start, total, y), n

    return LowerSolver(init, epoch, value=lambda state: state[2])


def optax_steps(optimizer: optax.GradientTransformation, steps: int, batch: int = 1) -> LowerSolver:
    """A fixed number of steps of any optax optimizer from y_1^0, whatever the level.

    All of them belong to epoch 1 (y_1^0 is the start, y_k^0 the result for every k >= 2), so
    that levels telescope here too.
    """
    require_integer("steps", "optax_steps", steps, 1)
    require_integer("batch", "optax_steps", batch, 1)

    def epoch(key: Key, problem: Problem, x: X, xi: Xi, y: Y, k: Count) -> tuple[Y, Count]:
        problem = problem.averaged(batch)
        n = jnp.where(k == 1, steps, 0).astype(jnp.int32)

        def step(j: Count, carry: tuple[Y, Any]) -> tuple[Y, Any]:
            y, opt_state = carry
            eta = problem.conditional(random.fold_in(key, j), xi)
            updates, opt_state = optimizer.update(problem.grad_g(x, y, eta, xi), opt_state, y)
            return optax.apply_updates(y, updates), opt_state

        return lax.fori_loop(0, n, step, (y, optimizer.init(y)))[0], n

    return LowerSolver(Problem.start, epoch, batch=batch)


def frozen() -> LowerSolver:
    """No steps at all: y = init_y(x, xi) at every level."""

    def epoch(key: Key, problem: Problem, x: X, xi: Xi, y: Y, k: Count) -> tuple[Y, Count]:
        return y, jnp.zeros((), jnp.int32)

    return LowerSolver(Problem.start, epoch)
