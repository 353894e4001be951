"""Many runs of one method, over seeds and step sizes, in one compiled program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random

from bilevelax.estimate import Cost, Estimator
from bilevelax.problem import Key, Problem, X
from bilevelax.steps import Carry, initial_carry, step

Watch = Callable[[X], dict[str, Any]]  # traceable: x -> scalars


class Trajectories(NamedTuple):
    """Arrays of shape (lanes, chunks + 1), entry 0 at x_1; lane i is lane i of ``keys``."""

    t: np.ndarray  # steps taken, (chunks + 1,)
    values: dict[str, np.ndarray]  # of ``watch`` at x_{t+1}
    means: dict[str, np.ndarray]  # of ``every_step`` over x_1..x_t (at entry 0: at x_1)
    cost: dict[str, np.ndarray]  # oracle calls so far
    x: X  # last iterates, stacked
    seconds: float  # of all lanes together, without compilation
    compile_seconds: float


def seed_keys(seeds: int, role: int = 0) -> Key:
    """The key of each seed 0, 1, ..., stacked; ``role`` tells apart the uses of a seed."""
    return jax.vmap(lambda seed: random.fold_in(random.key(seed), role))(jnp.arange(seeds))


def lanes(keys: Key, scales: Sequence[float]) -> tuple[Key, jax.Array]:
    """Every seed with every step scale: lane i * len(scales) + j has seed i and scale j."""
    return jnp.repeat(keys, len(scales), axis=0), jnp.tile(jnp.asarray(scales, float), len(keys))


def scaled(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer with all its updates multiplied by a number kept in its state, so that lanes can differ in it."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        inner, scale = state
        updates, inner = optimizer.update(updates, inner, params)
        return jax.tree.map(lambda u: scale.astype(u.dtype) * u, updates), (inner, scale)

    return optax.GradientTransformation(lambda params: (optimizer.init(params), jnp.ones((), float)), update)


class Method(NamedTuple):
    """What a compiled program is made for: equal methods share one."""

    estimator: Estimator
    optimizer: optax.GradientTransformation
    watch: Watch
    every_step: Watch
    chunks: int
    together: bool


@partial(jax.jit, static_argnames="method")
def program(method: Method, problem: Problem, x1: X, keys: Key, scales: jax.Array, every: jax.Array) -> Any:
    """All lanes; ``every``, the steps per chunk, is traced: one program serves every length of run."""
    optimizer = scaled(method.optimizer)

    def one(key: Key, state: Any) -> Any:
        carry, cost, seen = state
        seen = optax.tree.add(seen, method.every_step(carry.x))
        carry, est = step(problem, method.estimator, optimizer, carry, key)
        return carry, jax.tree.map(lambda a, b: a + jnp.asarray(b, a.dtype), cost, est.cost), seen

    def lane(key: Key, scale: jax.Array) -> Any:
        start = initial_carry(problem, method.estimator, optimizer, x1)
        start = start._replace(opt_state=(start.opt_state[0], scale))
        zero = Cost(*(jnp.zeros((), jnp.int32) for _ in dataclasses.fields(Cost)))
        first = method.every_step(x1)

        def chunk(carry: Carry, _: None) -> tuple[Carry, Any]:
            state = (carry, zero, optax.tree.zeros_like(first))
            carry, cost, seen = lax.fori_loop(0, every, lambda _, state: one(key, state), state)
            return carry, (method.watch(carry.x), cost, seen)

        carry, logs = lax.scan(chunk, start, None, method.chunks)
        return carry.x, (method.watch(x1), first), logs

    if method.together:
        return jax.vmap(lane)(keys, scales)
    return lax.map(lambda pair: lane(*pair), (keys, scales))


def nothing(x: X) -> dict[str, Any]:
    """Watch nothing."""
    return {}


def trajectories(
    problem: Problem,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    x1: X,
    keys: Key,
    *,
    T: int,
    every: int,
    watch: Watch = nothing,
    every_step: Watch = nothing,
    scales: Any = None,
    together: bool = True,
) -> Trajectories:
    """T steps of Algorithm 2 for every key; lane i multiplies the optimizer's steps by ``scales[i]``.

    The steps of lane i are those of `minimize` with ``keys[i]``. Calls with the same estimator,
    optimizer, watch and every_step (the same objects) and the same number of chunks share one
    compiled program, whatever T, every, scales and keys are.

    Args:
        T: number of steps, a multiple of ``every``.
        every: steps per chunk; fewer than 2^31 oracle calls of each kind per chunk.
        watch: evaluated at x_1 and after each chunk.
        every_step: evaluated at every iterate x_1, x_2, ... and averaged (for E of a uniform iterate).
        scales: one number per lane; 1 by default.
        together: all lanes vectorised; else one after another, where random levels differ (a
            vectorised loop is as long as its longest lane), or to time them.
    """
    if T % every:
        raise ValueError(f"`T` of trajectories must be a multiple of every = {every}. Got {T}.")
    method = Method(estimator, optimizer, watch, every_step, T // every, together)
    scales = jnp.ones(len(keys), float) if scales is None else jnp.asarray(scales, float)
    call = partial(program, method, problem, x1, keys, scales)
    started = time.perf_counter()
    jax.block_until_ready(call(0))  # no steps: compiles
    ready = time.perf_counter()
    x, (first, first_step), (values, cost, seen) = jax.block_until_ready(call(every))
    seconds = time.perf_counter() - ready
    t = every * np.arange(T // every + 1)
    ahead = lambda a, b: np.concatenate([np.asarray(a)[:, None], np.asarray(b)], axis=1)
    sums = {name: np.cumsum(np.asarray(a, np.float64), axis=1) / t[1:] for name, a in seen.items()}
    return Trajectories(
        t,
        {name: ahead(first[name], values[name]) for name in values},
        {name: ahead(first_step[name], sums[name]) for name in sums},
        _totals(cost),
        x,
        seconds,
        ready - started,
    )


def _totals(cost: Cost) -> dict[str, np.ndarray]:
    counts = {name: np.cumsum(np.asarray(a, np.int64), axis=1) for name, a in cost.asdict().items()}
    return {name: np.concatenate([np.zeros_like(a[:, :1]), a], axis=1) for name, a in counts.items()}
