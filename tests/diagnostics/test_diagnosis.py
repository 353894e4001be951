"""Bias, variance and certificate along a run."""

from functools import partial

import numpy as np
import optax
import pytest

import bilevelax as bx


def test_diagnosis_along_the_run(quadratic, matrices, x, key):
    """Every second chunk and at x1; truth inside the intervals; x itself is untouched."""
    run = partial(
        bx.minimize, quadratic, bx.minibatch(bx.saa(4), 8), optax.sgd(0.1), x, key=key, T=8, every=2, progress=False
    )
    plain, watched = run(), run(diagnose=2)
    np.testing.assert_array_equal(plain.x, watched.x)
    assert [("bias" in row) for row in watched.history] == [True, False, True, False, True]
    exact = float(np.sum(matrices.grad_F(np.asarray(x)) ** 2))
    first = watched.history[0]
    assert first["grad2_low"] <= exact <= first["grad2_high"]
    assert 0 <= first["bias_low"] <= first["bias"] <= first["bias_high"] and first["variance"] > 0


def test_diagnosis_needs_an_estimator_without_state(quadratic, x, key):
    with pytest.raises(ValueError, match="`diagnose` of minimize needs an estimator that keeps no state"):
        bx.minimize(quadratic, bx.warm_started(bx.saa(4)), optax.sgd(0.1), x, key=key, T=2, diagnose=1)
