"""Functions of y that jump are told from those that bend, whatever the sign of the jumps."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.diagnostics import jumps
from bilevelax.diagnostics.jumps import Jumps, jump_rows

KINDS = {  # of y, by number: one program for all
    "smooth": lambda y: y**2 / 2,
    "a kink": lambda y: jnp.abs(y - 0.3),
    "a large constant": lambda y: y + 1e6,
    "not a number": lambda y: jnp.log(-1 - y**2),
    "floor": lambda y: y**2 / 2 + jnp.floor(y),
    "sign": lambda y: y**2 / 2 + jnp.sign(y - 0.3),
    "round alone": lambda y: jnp.round(y),
    "a step that few lines cross": lambda y: y + jnp.where(y > 3.2, 2.0, 0.0),
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
        alarms += not Jumps.along((1 - where[..., 0]) - (t > where).mean(-1), np.ones(jumps.PATHS)).row("f").ok
    assert alarms == 0


def test_more_lines_are_looked_at_where_few_cross_a_step(monkeypatch):
    x = jnp.asarray(list(KINDS).index("a step that few lines cross"), float)
    found = lambda i: jump_rows(random.key(i), PROBLEM, x, jnp.asarray(ANSWERS), jnp.asarray(ANSWERS))[0].ok is False
    assert all(map(found, range(8)))
    monkeypatch.setattr(jumps, "ROUNDS", 1)
    assert not all(map(found, range(8))), "one look is enough: the test has no power"


def test_what_changes_and_has_no_slope_anywhere_jumps():
    """Six of 256 lines: too few for the other test, and no chance."""
    errors = np.where(np.arange(256)[:, None] < 6, 1.0, 0.0) * np.ones(2)
    found = Jumps.along(errors, errors[:, 0] ** 2)
    assert found.sure < jumps.SURE and not found.row("f").ok
    few = np.where(np.arange(256)[:, None] < 3, errors, 0.0)
    assert Jumps.along(few, few[:, 0] ** 2).row("f").ok
    sloping = errors.copy()
    sloping[5] = 0.7, 0.4  # its slope was met
    assert Jumps.along(sloping, errors[:, 0] ** 2).row("f").ok
