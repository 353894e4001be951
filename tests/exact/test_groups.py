"""Contexts in groups: what is computed for each is what vmap computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bilevelax.exact import groups
from bilevelax.exact.constraints.solve import depends
from bilevelax.exact.groups import in_groups


def halved(a, b):
    """Times that a falls below b by halving, and what is left: lanes end at different times."""
    return lax.while_loop(lambda s: s[1] > b, lambda s: (s[0] + 1, s[1] / 2), (jnp.zeros((), jnp.int32), a))


def in_groups_of(lanes):
    return lambda a, b: in_groups(lambda: halved(a, b), groups.CACHE // lanes)


@pytest.mark.parametrize("lanes", [1, 3, 7, 64])
def test_groups_compute_what_vmap_does(lanes):
    """Where the last group is not full, where all fit into one, and with an argument that is shared."""
    a = jnp.exp2(jnp.arange(7.0))
    for axes in ((0, None), (0, 0)):
        b = 1.5 if axes[1] is None else jnp.linspace(0.5, 3, 7)
        found = jax.jit(jax.vmap(in_groups_of(lanes), in_axes=axes))(a, b)
        jax.tree.map(np.testing.assert_array_equal, found, jax.vmap(halved, in_axes=axes)(a, b))


@pytest.mark.parametrize("lanes", [1, 4, 10])
def test_vmaps_inside_each_other(lanes):
    a, b = jnp.exp2(jnp.arange(6.0)), jnp.linspace(0.5, 3, 5)
    twice = lambda one: jax.vmap(lambda a: jax.vmap(lambda b: one(a, b))(b))(a)
    jax.tree.map(np.testing.assert_array_equal, twice(in_groups_of(lanes)), twice(halved))


def test_without_vmap_nothing_changes():
    jax.tree.map(np.testing.assert_array_equal, in_groups_of(2)(8.0, 1.0), halved(8.0, 1.0))


def test_groups_are_smaller_than_all_contexts():
    """Else nothing is saved: at most ``lanes`` of them are in an array of the loop."""
    program = str(jax.make_jaxpr(jax.vmap(in_groups_of(3), in_axes=(0, None)))(jnp.ones(7), 1.0))
    assert "f64[3]" in program or "f32[3]" in program


def test_a_quadratic_has_a_hessian_that_does_not_depend_on_y():
    Q, y = jnp.eye(3), jnp.ones(3)
    assert not depends(jax.hessian(lambda y: y @ (Q @ y) / 2 + y.sum()), y)
    assert depends(jax.hessian(lambda y: jnp.sum(y**4)), y)
