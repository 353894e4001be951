"""Every diagnostic answers bad input with one sentence."""

import jax.numpy as jnp
import optax
import pytest

import bilevelax as bx


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, x, k: bx.constants(p, x, key=0), "`key` of constants must be one JAX random key"),
        (lambda p, x, k: bx.constants(p, x, key=k, contexts=0), "`contexts` of constants must be an integer >= 1"),
        (lambda p, x, k: bx.check(p, x, key=k, tol=-1.0), "`tol` of check must be a positive number"),
        (lambda p, x, k: bx.check(p, x, key=k, n=3), "`n` of check must be an integer >= 32"),
        (lambda p, x, k: bx.check(p, jnp.arange(3), key=k), "`x` of check must be floating point"),
        (lambda p, x, k: bx.certify(p, x, key=k, n=8), "`n` of certify must be an integer >= 32"),
        (lambda p, x, k: bx.certify(p, x, key=k, level=1.0), "`level` of certify must lie between 0 and 1"),
        (lambda p, x, k: bx.certified(0.0), "`eps` of certified must be a positive number"),
        (lambda p, x, k: bx.certified(0.1, level=2.0), "`level` of certified must lie between 0 and 1"),
        (lambda p, x, k: bx.tune(p, x, key=k, budget_seconds=0), "`budget_seconds` of tune must be a positive number"),
        (lambda p, x, k: bx.check(p, x, key=k, tol=None), "`tol` of check must be a positive number. Got None"),
        (
            lambda p, x, k: bx.tune(p, x, key=k, budget_seconds=None),
            "`budget_seconds` of tune must be a positive number",
        ),
        (lambda p, x, k: bx.tune(p, x, key=k, among={}), "`among` of tune must name at least one estimator"),
        (
            lambda p, x, k: bx.minimize(p, "best", optax.sgd(0.1), x, key=k, T=1),
            "`estimator` of minimize must be one of 'auto'. Got 'best'",
        ),
    ],
)
def test_bad_input(call, message, quadratic, x, key):
    with pytest.raises(ValueError, match=message):
        call(quadratic, x, key)
