"""When a relative bias is decided and when it stays open."""

import numpy as np

from bilevelax.diagnostics.bias import relative_bias


def test_noise_leaves_a_bias_open():
    rows = np.random.default_rng(0).normal(size=(64, 3))
    assert relative_bias(rows, 1.0, 0.0).decided(0.05) is None
    assert relative_bias(rows + 1, 1.0, 0.0).decided(0.05) is False
    assert relative_bias(1e-3 * rows, 1.0, 0.0).decided(0.05) is True
    assert relative_bias(np.full((4, 1), np.nan), 1.0, 0.0).decided(0.05) is False
    assert relative_bias(1e-3 * rows, 1.0, 1.0).decided(0.05) is None  # the reference is not better than that


def test_a_relative_bias_without_scale_is_open():
    rows = np.random.default_rng(0).normal(size=(64, 3))
    assert relative_bias(rows, 0.0, 0.0).decided(0.05) is None
    assert relative_bias(np.nan * rows, 0.0, 0.0).decided(0.05) is False
