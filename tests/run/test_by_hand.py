"""Estimators called by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevelax as bx


def test_one_estimate_by_hand(logistic, key):
    estimator = bx.minibatch(bx.saa("all"), 3, contexts="spread")
    found, state = estimator(key, logistic, np.ones(4))
    assert state == () and int(found.cost.xi) == 3
    wanted, _ = jax.jit(lambda key: estimator.estimate(key, logistic, jnp.ones(4), ()))(key)
    np.testing.assert_allclose(found.grad, wanted.grad, rtol=1e-12)


def test_one_that_remembers(logistic, key):
    estimator, x = bx.warm_started(bx.saa("all")), jnp.ones(4)
    first, state = estimator(key, logistic, x)
    again, _ = estimator(key, logistic, x, state)
    np.testing.assert_allclose(first.grad, again.grad, rtol=1e-5)
    assert int(again.cost.grad_g) < int(first.cost.grad_g)


def test_bad_input(logistic, key):
    with pytest.raises(ValueError, match=r"`x` of an estimator must be floating point. Got int"):
        bx.saa(4)(key, logistic, jnp.arange(4))
    with pytest.raises(ValueError, match="`key` of an estimator must be one JAX random key"):
        bx.saa(4)(0, logistic, jnp.ones(4))
