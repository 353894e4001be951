"""What newcomers do inside f, g and samplers that JAX cannot trace, and arrays that they close over."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.problems.validate import check_shapes

TABLE = np.arange(12.0).reshape(4, 3)


def problem(**changed):
    parts = {
        "f": lambda x, y, eta, xi: jnp.sum(y**2),
        "g": lambda x, y, eta, xi: jnp.sum((y - x) ** 2),
        "sample_context": lambda key, data: random.randint(key, (), 0, 4),
        "sample_conditional": lambda key, xi, data: random.normal(key),
        "init_y": lambda x, xi: jnp.zeros(3),
    }
    return bx.Problem(**{**parts, **changed})


@pytest.mark.parametrize(
    ("part", "function", "told"),
    [
        ("g", lambda x, y, eta, xi: jnp.sum((y - TABLE[xi]) ** 2), r"jnp.asarray\(array\)\[i\]"),
        ("g", lambda x, y, eta, xi: np.sin(y).sum(), "call jnp instead of np"),
        ("f", lambda x, y, eta, xi: y[0] if xi > 0 else y[1], "use jnp.where or jax.lax.cond instead of if"),
        ("f", lambda x, y, eta, xi: y[0] * [1.0, 2.0, 3.0, 4.0][xi], "index jnp arrays instead of lists"),
        ("sample_conditional", lambda key, xi, data: TABLE[xi], r"jnp.asarray\(array\)\[i\]"),
        ("g", lambda x, y, eta, xi: jnp.sum(y - jnp.ones(2)), "Make init_y and the samplers return what g takes"),
        ("init_y", lambda x, xi: jnp.ones(2) + jnp.ones(3), "it must run under jax.jit"),
    ],
)
def test_the_remedy_fits_the_mistake(part, function, told):
    with pytest.raises(ValueError, match=told):
        check_shapes(problem(**{part: function}), jnp.ones(3))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"mu_g": "large"}, "`mu_g` of Problem must be a positive number. Got 'large'"),
        ({"L_g1": len}, "`L_g1` of Problem must be a positive number"),
        ({"n_contexts": 2.5, "context_at": lambda i, data: i}, "`n_contexts` of Problem must be an integer"),
        ({"n_contexts": 4, "context_at": lambda i, data: (i, i)}, "`context_at` of Problem must return xi"),
        ({"guess": lambda x, xi, data: {"y": x}}, r"`guess` of Problem must return y, as init_y does: float\d+\[3\]"),
        ({"support": lambda xi, data: xi}, "`support` of Problem must return a pair"),
        ({"support": lambda xi, data: (jnp.ones(3), jnp.ones(2) / 2)}, "one weight for each outcome"),
    ],
)
def test_parts_that_may_be_left_out_fit_the_others(changed, told):
    with pytest.raises(ValueError, match=told):
        check_shapes(problem(**changed), jnp.ones(3))


def test_a_loss_may_be_a_plain_number(key):
    found, _ = bx.saa(2)(key, problem(f=lambda x, y, eta, xi: 2.5), jnp.ones(3))
    assert not np.any(found.grad)


def test_large_arrays_that_are_closed_over_are_told():
    large = np.ones((3, 2**20))  # 25 MB
    held = problem(g=lambda x, y, eta, xi: jnp.sum((y - jnp.asarray(large)[:, 5]) ** 2))
    with pytest.warns(UserWarning, match=r"`g` of Problem closes over arrays of 25 MB.*data=\.\.\."):
        check_shapes(held, jnp.ones(3))
    given = problem(sample_conditional=lambda key, xi, data: data[:, xi]).replace(data=jnp.asarray(large))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_shapes(given, jnp.ones(3))
        check_shapes(problem(g=lambda x, y, eta, xi: jnp.sum((y - jnp.asarray(TABLE)[xi]) ** 2)), jnp.ones(3))


def test_a_problem_is_told_in_one_line():
    large = problem(init_y=lambda x, xi: x).replace(data=(jnp.ones((1000, 1000)), jnp.ones(2)), mu_g=2.0)
    assert (
        repr(large)
        == "Problem(f=<lambda>, g=<lambda>, contexts=drawn, outcomes=drawn, data=2 arrays of 8 MB, mu_g=2.0)"
    )
    stored = bx.from_arrays(
        f=large.f,
        g=large.g,
        contexts=TABLE,
        outcomes=TABLE[:, :, None],
        init_y=large.init_y,
        constraint=bx.box(0.0, 1.0),
    )
    assert "contexts=4, outcomes=stored, data=3 arrays of 208 bytes, constraint=box" in repr(stored)
    assert len(repr(stored)) < 200
