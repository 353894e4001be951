"""Optimizers of optax that ask for F: `optax.lbfgs` and its line search."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevelax as bx
from bilevelax.run.line_search import exact_values, missing, with_values

FULL = bx.minibatch(bx.saa("all"), 3, contexts="spread")


def test_value_and_gradient_are_those_of_the_whole_problem(logistic, key):
    x = jnp.ones(4)
    given = exact_values(logistic, x)
    assert given["value"] == pytest.approx(bx.evaluate(logistic, x, key=key).mean, rel=1e-9)
    jax.tree.map(np.testing.assert_array_equal, jax.grad(given["value_fn"])(x), given["grad"])
    assert float(jnp.sum(given["grad"] ** 2)) == pytest.approx(bx.certify(logistic, x, key=key).estimate, rel=1e-6)


def test_lbfgs_reaches_what_solve_certifies(logistic, key, tmp_path):
    x, lbfgs = jnp.ones(4), optax.lbfgs()
    saved = {"checkpoint": bx.Checkpoint(tmp_path / "run"), "progress": False, "key": key}
    found = bx.minimize(logistic, FULL, lbfgs, x, T=25, every=25, **saved)
    assert bx.certify(logistic, found.x, key=key).norm_high < 1e-5
    again = bx.minimize(logistic, FULL, lbfgs, x, T=25, every=25, **saved)
    np.testing.assert_array_equal(again.x, found.x)


def test_where_f_is_not_known_one_sentence(quadratic, x, key):
    with pytest.raises(ValueError, match=r"asks for the value of F.*'value'.*\. Use `solve`.*linesearch=None"):
        bx.minimize(quadratic, bx.saa(4), optax.lbfgs(), x, key=key, T=1)
    with pytest.raises(ValueError, match="asks for the value of F"):
        bx.minimize(quadratic, bx.saa(4), optax.polyak_sgd(), x, key=key, T=1)
    for optimizer in (optax.lbfgs(0.1, linesearch=None), optax.adam(0.1)):
        assert missing(optimizer, x) is None and with_values(optimizer, quadratic, x) is optimizer


@pytest.mark.parametrize(
    ("optimizer", "told"), [(0.1, "Got 0.1"), (optax.lookahead(optax.sgd(0.1), 2, 0.5), "fails on x: .*fast")]
)
def test_what_is_no_optimizer_of_x_gets_one_sentence(optimizer, told, quadratic, x, key):
    with pytest.raises(ValueError, match=rf"`optimizer` of minimize must be one of optax.*{told}"):
        bx.minimize(quadratic, bx.saa(4), optimizer, x, key=key, T=1)
