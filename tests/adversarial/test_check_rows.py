"""Rows of `check` that must not blame what is right, and must find what is wrong whatever the key."""

import jax.numpy as jnp
from jax import lax, random

from bilevelax.diagnostics import part_errors
from bilevelax.diagnostics.samplers import sampler_rows
from bilevelax.testing.adversarial.case import plain
from bilevelax.testing.adversarial.samplers import stored

KEY, X = random.key(0), jnp.ones(2)


def test_a_right_sampler_is_not_blamed():
    """200 keys: each test's rate is 1e-5."""
    problem = stored()
    assert all(row.ok for i in range(200) for row in sampler_rows(problem, X, random.fold_in(KEY, i)))


def test_a_stopped_bias_is_found_whatever_the_key(monkeypatch):
    """Two of 100 numbers move F: along some directions by less than rounding, so that one direction is not enough."""
    x = {"W": jnp.full((200, 2), 0.05, jnp.float32), "b": jnp.zeros(100, jnp.float32)}
    used = lambda x: jnp.linspace(0, 1, 200, dtype=jnp.float32) @ x["W"] + lax.stop_gradient(x["b"][:2])
    problem = plain(g=lambda x, y, eta, xi: jnp.sum((y - used(x) - eta) ** 2) / 2, dtype=jnp.float32)
    found = lambda i: part_errors.finite_differences(random.key(i), problem, x, 4, 16).leaves
    keys = (28, 74, 77, 78, 113, 131)  # of 150 that were tried
    assert all(found(i) == ("['b']",) for i in keys)
    monkeypatch.setattr(part_errors, "TRIES", 1)
    assert not all(map(found, keys)), "one direction is enough: the test has no power"


def test_the_first_direction_that_tells_decides():
    nothing, agree, contradict = (1.0, 2.0, 1.0), (0.0, 2.0, 5.0), (5.0, 2.0, 5.0)
    assert part_errors.contradicts(iter([nothing, contradict, agree]), tol=1e-2)
    assert not part_errors.contradicts(iter([nothing, agree, contradict]), tol=1e-2)
    assert not part_errors.contradicts(iter([nothing] * 4), tol=1e-2)
