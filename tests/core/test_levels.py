"""Lanes of many levels: scheduled by data, so that a program is as long for few levels as for many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.core.levels import in_groups, leftover_levels
from bilevelax.testing import assert_mean

PARTS = {"lower": bx.epoch_sgd(0.4), "inverse": bx.neumann(10)}
MAKERS = {
    "rt_mlmc": lambda levels: bx.rt_mlmc(levels, **PARTS),
    "antithetic_mlmc": lambda levels: bx.antithetic_mlmc(4, levels, factor=2),
}


def operations(estimator, m, problem, x):
    """Lines of the lowered program of a minibatch."""
    batch = bx.minibatch(estimator, m)
    return jax.jit(lambda key: batch.estimate(key, problem, x, ())[0].grad).lower(random.key(0)).as_text().count("\n")


@pytest.mark.parametrize("name", MAKERS)
def test_a_program_does_not_grow_with_levels_or_lanes(name, quadratic, x):
    """Control: one more estimator in the program, here two minibatches, is seen."""
    make = MAKERS[name]
    few, more, wide = (operations(make(K), m, quadratic, x) for K, m in ((3, 16), (8, 16), (3, 64)))
    assert few == more == wide
    both = lambda key: [bx.minibatch(make(3), m).estimate(key, quadratic, x, ())[0].grad for m in (16, 64)]
    assert jax.jit(both).lower(random.key(0)).as_text().count("\n") > 1.5 * few


@pytest.mark.parametrize(("rows", "width", "n"), [(1, 4, 1), (4, 4, 3), (7, 3, 7), (7, 3, 4), (6, 2, 3), (5, 8, 0)])
def test_groups_keep_rows_in_their_place(rows, width, n):
    """Only groups that hold one of the first n rows are touched, each row once."""
    stacked = {
        "a": jnp.arange(rows),
        "b": jnp.arange(3.0 * rows).reshape(rows, 3),
        "key": random.split(random.key(0), rows),
    }
    seen = []

    def double(group):
        seen.append(len(group["a"]))
        return {**group, "a": 2 * group["a"], "b": 2 * group["b"]}

    done = jax.jit(lambda n: in_groups(double, stacked, width, n))(n)
    reached = -(-n // min(rows, width)) * min(rows, width)
    for name in ("a", "b"):
        doubled = (jnp.arange(rows) < reached).reshape(-1, *[1] * (stacked[name].ndim - 1))
        np.testing.assert_array_equal(done[name], jnp.where(doubled, 2 * stacked[name], stacked[name]))
    assert jnp.all(done["key"] == stacked["key"])
    assert set(seen) == {min(rows, width)}  # traced once or more, never with another width


def test_a_lane_that_climbs_with_higher_ones_is_the_lane_alone(quadratic, x, key):
    """Levels 1, 3, 2, 1 together, in no order: bit for bit what each is by itself, up to how sums are ordered."""
    levels = bx.rt_mlmc(3, **PARTS).levels
    ks, keys = jnp.asarray([1, 3, 2, 1], jnp.int32), random.split(key, 4)
    together = jax.jit(lambda: levels.at_levels(ks, keys, quadratic, x))()
    alone = jax.jit(lambda k, key: levels.at_level(k, key, quadratic, x))
    for i, k in enumerate(ks.tolist()):
        one = alone(k, keys[i])
        np.testing.assert_allclose(together.grad[i], one.grad, rtol=1e-12, atol=1e-13)
        assert jax.tree.map(lambda a, i=i: int(a[i]), together.cost) == jax.tree.map(int, one.cost)


def test_leftover_levels_have_the_right_frequencies(key):
    fraction = np.array([0.7, 0.2, 0.6, 0.5])  # two lanes
    draws = jax.jit(jax.vmap(lambda key: leftover_levels(key, fraction, 2)))(random.split(key, 20_000))
    counts = jax.nn.one_hot(draws, 4).sum(1)
    assert_mean(counts, fraction, power=0.03)
