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


def scaled(optimizer: optax.GradientTransformation, scale: jax.Array) -> optax.GradientTransformation:
    """The optimizer with all its updates multiplied by a number, which may be traced: lanes can differ in it."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimizer.update(updates, state, params)
        return jax.tree.map(lambda u: scale.astype(u.dtype) * u, updates), state

    return optax.GradientTransformation(optimizer.init, update)


def nothing(x: X) -> dict[str, Any]:
    """Watch nothing."""
    return {}


class Segments(NamedTuple):
    """What a run leaves behind each stretch of steps, stacked."""

    looked: Any  # ``look`` at the x reached
    cost: Cost  # oracle calls of the stretch
    seen: dict[str, jax.Array]  # sums of ``every_step`` over its iterates


def run_segments(
    problem: Problem,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    x1: X,
    key: Key,
    gaps: jax.Array,
    look: Callable[[X], Any] = lambda x: x,
    every_step: Watch = nothing,
) -> tuple[X, Segments]:
    """Algorithm 2 from x1 for gaps[0], gaps[1], ... steps, a look after each: the last x and what was seen.

    Traceable, and in ``gaps``, the key and whatever the optimizer holds: the run of which all
    experiments vectorise or repeat lanes.
    """
    zero = Cost(*(jnp.zeros((), jnp.int32) for _ in dataclasses.fields(Cost)))
    unseen = optax.tree.zeros_like(every_step(x1))

    def one(_: Any, state: Any) -> Any:
        carry, cost, seen = state
        seen = optax.tree.add(seen, every_step(carry.x))
        carry, est = step(problem, estimator, optimizer, carry, key)
        return carry, jax.tree.map(lambda a, b: a + jnp.asarray(b, a.dtype), cost, est.cost), seen

    def segment(carry: Carry, n: jax.Array) -> tuple[Carry, Segments]:
        carry, cost, seen = lax.fori_loop(0, n, one, (carry, zero, unseen))
        return carry, Segments(look(carry.x), cost, seen)

    carry, segments = lax.scan(segment, initial_carry(problem, estimator, optimizer, x1), gaps)
    return carry.x, segments


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
    gaps = jnp.full(method.chunks, every, jnp.int32)

    def lane(key: Key, scale: jax.Array) -> tuple[X, Segments]:
        optimizer = scaled(method.optimizer, scale)
        return run_segments(
            problem, method.estimator, optimizer, x1, key, gaps, look=method.watch, every_step=method.every_step
        )

    lanes = jax.vmap(lane)(keys, scales) if method.together else lax.map(lambda pair: lane(*pair), (keys, scales))
    return *lanes, method.watch(x1), method.every_step(x1)


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
    x, (values, cost, seen), first, first_step = jax.block_until_ready(call(every))
    seconds = time.perf_counter() - ready
    t = every * np.arange(T // every + 1)
    ahead = lambda a, b: np.concatenate([np.broadcast_to(np.asarray(a), (len(keys), 1)), np.asarray(b)], axis=1)
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
