"""Functions of y that jump are told from those that bend, whatever the sign of the jumps."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.diagnostics import jumps
from bilevelax.diagnostics.jumps import _row, jump_rows

KINDS = {  # of y, by number: one program for all
    "smooth": lambda y: y**2 / 2,
    "a kink": lambda y: jnp.abs(y - 0.3),
    "a large constant": lambda y: y + 1e6,
    "not a number": lambda y: jnp.log(-1 - y**2),
    "floor": lambda y: y**2 / 2 + jnp.floor(y),
    "sign": lambda y: y**2 / 2 + jnp.sign(y - 0.3),
    "round alone": lambda y: jnp.round(y),
}
RIGHT = ("smooth", "a kink", "a large constant", "not a number")


def f(x, y, eta, xi):
    value = jnp.stack([kind(y) for kind in KINDS.values()])
    return value[x.astype(jnp.int32)]


PROBLEM = bx.Problem(
    f=f,
    g=lambda x, y, eta, xi: (y - xi - eta) ** 2,
    sample_context=lambda key, data: random.normal(key),
    sample_conditional=lambda key, xi, data: random.normal(key),
    init_y=lambda x, xi: jnp.zeros(()),
)
ANSWERS = 2 * np.random.default_rng(0).normal(size=16)


@pytest.mark.parametrize("kind", KINDS)
def test_jumps_are_told_from_kinks_and_rounding(kind):
    x = jnp.asarray(list(KINDS).index(kind), float)
    of_f, of_g = jump_rows(random.key(0), PROBLEM, x, jnp.asarray(ANSWERS), jnp.asarray(ANSWERS))
    assert of_f.ok == (kind in RIGHT) and of_g.ok
    assert ("floor" in of_f.remedy) == (not of_f.ok)


def test_a_kink_is_no_jump_in_ten_thousand_draws():
    """Errors of stratified means of a slope that changes once, in a place of its own on every line."""
    rng, alarms = np.random.default_rng(0), 0
    strata = np.arange(jumps.STRATA)
    for _ in range(10_000):
        t = (strata + rng.random((jumps.PATHS, 2, jumps.STRATA))) / jumps.STRATA
        where = rng.random((jumps.PATHS, 1, 1))
        alarms += not _row("f", (1 - where[..., 0]) - (t > where).mean(-1), np.ones(jumps.PATHS)).ok
    assert alarms == 0
