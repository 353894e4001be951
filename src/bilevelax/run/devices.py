"""One minibatch on many devices: equal work for each, and the numbers of one device up to the order of sums."""

from __future__ import annotations

import contextlib
import functools
import heapq
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bilevelax.base.errors import require_integer
from bilevelax.core.estimate import Estimate, Estimator, lifted, stateless
from bilevelax.core.levels import Plan, plan_of
from bilevelax.core.minibatch import Batch, lane_keys
from bilevelax.core.problem import Key, Problem, PyTree, X
from bilevelax.problems.feed import Columns, Fed

REPLICATED = PartitionSpec()


def expected_levels(plan: Plan) -> np.ndarray:
    """The level of every lane; of lanes whose level is random, the one in the middle."""
    middle = np.searchsorted(np.cumsum(plan.fraction)[:-1], 0.5 + np.arange(plan.left), side="right")
    return np.concatenate([plan.sure, plan.first + middle]).astype(int)


def deal(levels: np.ndarray, devices: int) -> np.ndarray:
    """(devices, lanes of each): the lanes of a device, deepest first; each goes to whoever has least to do.

    A lane of level k costs 2^k. All devices run one program, so they have equally many lanes.
    """
    room = len(levels) // devices
    given: list[list[int]] = [[] for _ in range(devices)]
    loads = [(0.0, d) for d in range(devices)]  # of those that have room
    for lane in np.argsort(-levels, kind="stable").tolist():
        load, d = heapq.heappop(loads)
        given[d].append(lane)
        if len(given[d]) < room:
            heapq.heappush(loads, (load + 2.0 ** levels[lane], d))
    return np.asarray(given, int).reshape(devices, room)


def axis_of(mesh: Any, owner: str = "minimize") -> str:
    names = mesh.axis_names if isinstance(mesh, Mesh) else ()
    if len(names) != 1:
        raise ValueError(
            f"`mesh` of {owner} must have one axis, that of the contexts. Got {names or repr(mesh)}; make one with "
            "jax.make_mesh((n,), ('contexts',))."
        )
    return str(names[0])


def automatic(mesh: Mesh) -> Mesh:
    """The same devices; `jax.make_mesh` makes axes along which arrays must be placed by hand."""
    return Mesh(mesh.devices, mesh.axis_names)


def lanes_over(mesh: Mesh) -> Callable[[PyTree], PyTree]:
    """Arrays with one row for each lane, laid over the devices; programs of them follow."""
    split = NamedSharding(mesh, PartitionSpec(axis_of(mesh)))
    return lambda lanes: jax.device_put(lanes, split)


@functools.lru_cache(maxsize=64)  # one program for many runs
def over_devices(estimator: Estimator, mesh: Mesh) -> Estimator:
    """A minibatch whose estimates are spread over the devices of a mesh by `shard_map`; gradients meet in one psum.

    Lanes keep their keys and levels, so the mean is that of one device, added up in another order. An estimator that
    has its own batch and can lay it over devices, ``settings.placed``, does so.
    """
    warm = lifted(estimator, lambda inner: over_devices(inner, mesh))
    if warm is not None:
        return warm
    axis, batch = axis_of(mesh), estimator.settings
    placed = getattr(batch, "placed", None)
    if placed is None and not isinstance(batch, Batch):
        raise ValueError("`estimator` of minimize must be a minibatch where `mesh` is given: minibatch(estimator, m).")
    if batch.m % mesh.size:
        owner = "minibatch" if placed is None else "the estimator"
        raise ValueError(f"`m` of {owner} must be a multiple of the {mesh.size} devices of the mesh. Got {batch.m}.")
    split = PartitionSpec(axis)
    if placed is not None:  # it draws for itself, and what it computes follows its draws
        each = functools.partial(
            jax.shard_map, mesh=mesh, in_specs=(split, REPLICATED), out_specs=split, check_vma=False
        )
        return placed(lambda draw, keys, problem: each(draw)(keys, problem))
    lanes = lanes_of(batch, mesh.size)

    def estimate(key: Key, problem: Problem, x: X) -> Estimate:
        keys, levels = jax.tree.map(lambda a: a[lanes], (lane_keys(key, batch.m), batch.levels(key)))
        problem = batch.with_contexts(problem, key)
        specs = jax.tree.map(lambda a: split if _is_fed(a) else REPLICATED, problem, is_leaf=_is_fed)

        def local(keys: Key, levels: Any, problem: Problem, x: X) -> Estimate:
            keys, levels = jax.tree.map(lambda a: a[0], (keys, levels))
            return mean_over(axis, batch.m, batch.estimates(levels, keys, problem, x))

        together = jax.shard_map(
            local, mesh=mesh, in_specs=(split, split, specs, REPLICATED), out_specs=REPLICATED, check_vma=False
        )
        return together(keys, levels, problem, x)

    def contexts(key: Key) -> Key:
        assert estimator.contexts is not None
        keys = estimator.contexts(key)
        each = len(keys) // batch.m
        return keys.reshape(batch.m, each, *keys.shape[1:])[lanes.ravel()].reshape(keys.shape)

    asked = estimator.contexts and contexts
    return stateless(estimate, settings=batch, contexts=asked, generic=estimator.generic)


def lanes_of(batch: Batch, devices: int) -> np.ndarray:
    """Who computes what: row d holds the lanes of device d."""
    if batch.mode == "stratified" and batch.estimator.levels is not None:
        return deal(expected_levels(plan_of(batch.estimator.levels, batch.m)), devices)
    return np.arange(batch.m).reshape(devices, -1)


def mean_over(axis: str, m: int, stacked: Estimate) -> Estimate:
    """The mean of m stacked estimates, of which each device has some; what they met is gathered."""
    total = lambda a: lax.psum(jnp.sum(a, axis=0, dtype=a.dtype), axis)
    mean = lambda a: total(a.astype(jnp.result_type(float)) if _counts(a) else a) / m
    gathered = lambda a: lax.all_gather(a, axis, tiled=True)
    drawn = stacked.aux.get("level")
    kept = {} if drawn is None else {"levels": gathered(drawn)}
    return Estimate(
        grad=jax.tree.map(mean, stacked.grad),
        cost=jax.tree.map(lambda a: total(jnp.asarray(a)), stacked.cost),
        aux={**jax.tree.map(mean, stacked.aux), **kept},
        visits=jax.tree.map(lambda a: gathered(a.reshape(-1, *a.shape[2:])), stacked.visits),
    )


def _is_fed(a: Any) -> bool:
    return isinstance(a, Fed)


def _counts(a: jax.Array) -> bool:
    return not jnp.issubdtype(a.dtype, jnp.floating)


def replicate(mesh: Mesh) -> Callable[[PyTree], PyTree]:
    """A function that puts a tree on all devices of a mesh, in all processes."""
    everywhere = NamedSharding(mesh, REPLICATED)

    def put(leaf: Any) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # a typed key has to be made there
            wrap = jax.jit(
                lambda words: random.wrap_key_data(words, impl=random.key_impl(leaf)), out_shardings=everywhere
            )
            return wrap(np.asarray(random.key_data(leaf)))
        return jax.device_put(np.asarray(leaf), everywhere)

    return lambda tree: jax.tree.map(put, tree)


def local(tree: PyTree) -> PyTree:
    """Replicated arrays as arrays of this process alone."""
    return jax.tree.map(lambda a: a.addressable_data(0) if isinstance(a, jax.Array) else a, tree)


def columns_of(mesh: Mesh) -> Columns:
    """Contexts in equal runs, one for each device of the mesh; each process reads those of its own devices."""
    by_column, by_part = (
        NamedSharding(mesh, spec) for spec in (PartitionSpec(None, axis_of(mesh)), PartitionSpec(axis_of(mesh)))
    )
    mine = [p for p, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    share = len(mine) / mesh.size

    def over(sharding: NamedSharding, axis: int) -> Callable[[np.ndarray], jax.Array]:
        whole = lambda a: tuple(round(n / share) if k == axis else n for k, n in enumerate(a.shape))
        return lambda a: jax.make_array_from_process_local_data(sharding, a, whole(a))

    return Columns(lambda n: list(np.arange(n).reshape(mesh.size, -1)), mine, over(by_column, 1), over(by_part, 0))


def local_mesh(devices: int) -> Mesh:
    """A mesh of this machine's first devices; CPU devices are made if none has been used yet."""
    require_integer("devices", "local_mesh", devices, 1)
    with contextlib.suppress(RuntimeError):  # already at work: take what there is
        jax.config.update("jax_num_cpu_devices", devices)
    found = jax.devices()
    if len(found) < devices:
        raise ValueError(f"`devices` of local_mesh must not exceed the {len(found)} devices there are. Got {devices}.")
    return Mesh(np.asarray(found[:devices]), ("contexts",))
