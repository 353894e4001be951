"""Lower solvers: EpochSGD (Algorithm 1) and others with the same levels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from optax import tree

from bilevelax.base.errors import refuse_projection, require_integer, require_positive, require_unconstrained
from bilevelax.core import trees
from bilevelax.core.estimate import Cost, Count, State
from bilevelax.core.problem import Eta, Key, Problem, X, Xi, Y

BLOCK = 64  # draws made at once inside an epoch: random bits and gathers leave the sequential loop


class Iterates(NamedTuple):
    """What RT-MLMC needs of a run of K epochs."""

    first: Y  # y_1^0; y_{k0}^0 where base_level = k0
    prev: Y  # y_K^0
    last: Y  # y_{K+1}^0
    steps: Count
    cost: Cost


class Iterating(NamedTuple):
    """A run of epochs under way."""

    state: State
    first: Y
    prev: Y
    steps: Count


class LowerSolver(NamedTuple):
    """A solver made of epochs; ``solver(key, problem, x, xi, K)`` runs K of them.

    ``init(problem, x, xi) -> state``; ``epoch(key, problem, x, xi, state, k) -> (state, steps)``,
    where draws are addressed by (key, k, j); ``value(state)`` is y_{k+1}^0 after epoch k.
    So k epochs are exactly the first k of K: that is why the levels of RT-MLMC telescope.
    """

    init: Callable[[Problem, X, Xi], State]
    epoch: Callable[[Key, Problem, X, Xi, State, Count], tuple[State, Count]]
    value: Callable[[State], Y] = lambda state: state
    batch: int = 1  # samples per step
    step_constants: Callable[[Problem], tuple[float, float]] | None = None  # (beta0, cap) on a problem, for `check`
    constrained: bool = False  # whether its values tell the face of an answer that is chosen from a set

    def __call__(self, key: Key, problem: Problem, x: X, xi: Xi, K: Count, base_level: int = 1) -> Iterates:
        """Epochs 1..K. K may be traced: one compiled program serves every level."""
        run = self.begin(key, problem, x, xi, base_level)
        return self.iterates(self.go_on(run, key, problem, x, xi, base_level, K))

    def begin(self, key: Key, problem: Problem, x: X, xi: Xi, base_level: int = 1) -> Iterating:
        """y_1^0, or what ``base_level - 1`` epochs make of it."""
        state = self.init(problem, x, xi)
        run = Iterating(state, self.value(state), self.value(state), jnp.zeros((), jnp.int32))
        run = self.go_on(run, key, problem, x, xi, 1, base_level - 1)
        return run._replace(first=self.value(run.state))

    def go_on(
        self,
        run: Iterating,
        key: Key,
        problem: Problem,
        x: X,
        xi: Xi,
        first: Count,
        last: Count,
        own: Count | None = None,
    ) -> Iterating:
        """Epochs first..last. Of a run that is vectorised with longer ones, only those up to its ``own`` last count:
        so the length of an epoch is the same for all of them.
        """

        def epoch(k: Count, run: Iterating) -> Iterating:
            state, taken = self.epoch(key, problem, x, xi, run.state, k)
            new = Iterating(state, run.first, self.value(run.state), run.steps + taken)
            return new if own is None else tree.where(k <= own, new, run)

        if isinstance(first, int) and isinstance(last, int) and last <= first:
            return epoch(first, run) if first == last else run
        done: Iterating = lax.fori_loop(first, last + 1, epoch, run)
        return done

    def iterates(self, run: Iterating) -> Iterates:
        """What came out."""
        return Iterates(run.first, run.prev, self.value(run.state), run.steps, self.cost(run.steps))

    def cost(self, steps: Count) -> Cost:
        """Oracle calls of that many steps."""
        return Cost(eta=self.batch * steps, grad_g=self.batch * steps)


def for_draws(
    key: Key,
    problem: Problem,
    xi: Xi,
    n: Count,
    block: int,
    body: Callable[[Eta, Any], Any],
    carry: Any,
    unroll: int = 2,
) -> Any:
    """``for j in range(n): carry = body(eta_j, carry)``, eta_j addressed by (key, j); n is a multiple of ``unroll``.

    The draws of a block are made together, and ``unroll`` steps are taken per loop iteration: the
    same numbers as one by one, 2 to 3 times faster on CPU. A block of 1 is a plain loop, which
    is what a `vmap` over different n wants.
    """
    if block == 1:
        return lax.fori_loop(0, n, lambda j, c: body(problem.conditional(random.fold_in(key, j), xi), c), carry)
    static = isinstance(n, int)
    block = min(block, n) if static else block

    def run_block(b: Count, carry: Any) -> Any:
        etas = problem.conditionals(key, xi, block, start=b * block)

        def steps(i: Count, carry: Any) -> Any:
            for j in range(unroll):
                carry = body(jax.tree.map(lambda a: a[unroll * i + j], etas), carry)  # noqa: B023 (called at once)
            return carry

        here = block if static and n % block == 0 else jnp.minimum(n - b * block, block)
        return lax.fori_loop(0, here // unroll, steps, carry)

    return run_block(0, carry) if static and n == block else lax.fori_loop(0, -(-n // block), run_block, carry)


def kept_draws(key: Key, problem: Problem, xi: Xi, n: Count, block: int, most: int) -> Eta:
    """eta_0, ..., eta_{n-1}, stacked in room for ``most`` of them and drawn block by block; n may be traced."""

    def fill(b: Count, room: Eta) -> Eta:
        new = problem.conditionals(key, xi, block, start=b * block)
        return jax.tree.map(lambda a, new: lax.dynamic_update_slice_in_dim(a, new, b * block, 0), room, new)

    blocks, shapes = -(-most // block), jax.eval_shape(lambda: problem.conditionals(key, xi, 1))
    room = jax.tree.map(lambda s: jnp.zeros((blocks * block, *s.shape[1:]), s.dtype), shapes)
    return lax.fori_loop(0, -(-n // block), fill, room)


def power_of_two(k: Count) -> Count:
    return 1 << k if isinstance(k, int) else jnp.left_shift(jnp.ones((), jnp.int32), k)


def _step_constants(beta0: float | None, cap: float | None, problem: Problem, owner: str) -> tuple[float, float]:
    """beta0 = 1/mu_g and cap = 1/(2 L_g1) unless given; refuses steps that must diverge."""
    L = problem.L_g1
    if beta0 is None:
        beta0 = 0.4 if problem.mu_g is None else 1 / problem.mu_g
    if cap is None:
        cap = math.inf if L is None else 1 / (2 * L)
    first = min(beta0 / 2, cap)
    if L is not None and first > 2 / L:
        raise ValueError(
            f"`beta0` of {owner} is {beta0:g} with {'no cap' if math.isinf(cap) else f'cap {cap:g}'} but this problem "
            f"has L_g1 = {L:g}: the first epoch steps {first:g} and diverges; leave `cap` unset or give "
            f"cap <= 1 / (2 L_g1) = {1 / (2 * L):g}."
        )
    return beta0, cap


def _epochs(
    owner: str,
    beta0: float | None,
    cap: float | None,
    batch: int,
    project: None,
    block: int,
    restart: bool,
) -> LowerSolver:
    """The family of EpochSGD. Its state is (where the next epoch starts, mean of the last one)."""
    require_positive("beta0", owner, beta0, optional=True)
    require_positive("cap", owner, cap, optional=True, infinite=True)
    require_integer("batch", owner, batch, 1)
    require_integer("block", owner, block, 2)
    refuse_projection(owner, project)
    if block % 2:
        raise ValueError(f"`block` of {owner} must be even. Got {block}.")

    def init(problem: Problem, x: X, xi: Xi) -> State:
        y = problem.start(x, xi)
        return y, y

    def epoch(key: Key, problem: Problem, x: X, xi: Xi, state: State, k: Count) -> tuple[State, Count]:
        beta, most = _step_constants(beta0, cap, problem, owner)
        problem = problem.averaged(batch)
        weight = jnp.ldexp(1.0, -k)
        step_size = jnp.minimum(beta * weight, most)

        def step(eta: Eta, carry: tuple[Y, Y]) -> tuple[Y, Y]:
            y, mean = carry
            slope = problem.grad_g(x, y, eta, xi)
            told = y if problem.constraint is None else trees.add_scale(y, -problem.push, slope)
            mean = trees.add_scale(mean, weight, told)  # y_k^0 .. y_k^{2^k-1}: the start is in, the last update is out
            return problem.land(x, trees.add_scale(y, -step_size, slope), xi)[0], mean

        y, _ = state
        n = power_of_two(k)
        y, mean = for_draws(random.fold_in(key, k), problem, xi, n, block, step, (y, tree.zeros_like(y)))
        return (problem.land(x, mean, xi)[0] if restart else y, mean), n

    constants = lambda problem: _step_constants(beta0, cap, problem, owner)
    return LowerSolver(init, epoch, lambda state: state[1], batch, step_constants=constants, constrained=True)


def epoch_sgd(
    beta0: float | None = None, cap: float | None = None, batch: int = 1, project: None = None, block: int = BLOCK
) -> LowerSolver:
    r"""EpochSGD (Algorithm 1): epoch k takes 2^k steps from the mean of the epoch before.

    .. math::
        y_k^{j+1} = y_k^j - \beta_k \nabla_2 g(x, y_k^j; \eta_k^j, \xi), \quad
        y_{k+1}^0 = 2^{-k} \sum_{j=0}^{2^k-1} y_k^j, \quad \beta_k = \min(\beta_0 2^{-k}, \text{cap})

    The paper prints :math:`\beta_0 = 1/(4\mu_g)`, for which its lemma fails; the error falls as
    :math:`2^{-k}` only if :math:`\mu_g \beta_0 \ge 0.739`. It has no cap, without which early
    epochs diverge for ill-conditioned g. With a constraint steps are projected, and y - t grad_2 g is averaged.

    Args:
        beta0: by default 1/mu_g where the problem knows it, else 0.4.
        cap: largest step; by default 1/(2 L_g1) where the problem knows it, else none.
        batch: samples averaged in each step; 1 is the paper.
        block: draws made at once, even. Results do not depend on it.
    """
    return _epochs("epoch_sgd", beta0, cap, batch, project, block, restart=True)


def sgd(
    beta0: float | None = None, cap: float | None = None, batch: int = 1, project: None = None, block: int = BLOCK
) -> LowerSolver:
    """Plain SGD with the steps and levels of `epoch_sgd`: one run that never restarts.

    Level k has 2^k more steps, and y_{k+1}^0 is the mean of that tail.
    """
    return _epochs("sgd", beta0, cap, batch, project, block, restart=False)


def lower_of(problem: Problem, lower: LowerSolver | None) -> LowerSolver:
    """The given solver, else the problem's own, else EpochSGD."""
    solver = lower or problem.lower or epoch_sgd()
    if not solver.constrained:
        require_unconstrained("This lower solver", problem, "epoch_sgd or sgd")
    return solver
