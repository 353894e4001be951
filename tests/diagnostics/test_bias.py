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


def test_what_is_right_is_not_blamed_for_its_reference():
    """The reference's error is told by eight numbers: it exceeds twice what they say once in twelve times."""
    rng = np.random.default_rng(0)

    def bias():
        noise, off = rng.normal(size=8), rng.normal() / np.sqrt(8)
        return relative_bias(off + 1e-3 * rng.normal(size=(32, 1)), 1.0, np.sqrt(np.sum(noise**2)) / 8, len(noise))

    seen = [bias() for _ in range(4000)]
    blamed = lambda verdict: sum(verdict(bias) is False for bias in seen)
    assert blamed(lambda bias: bias.decided(0.05)) >= 120
    assert blamed(lambda bias: bias.judged(0.05)) <= 4  # one in a thousand


def test_a_large_bias_is_blamed_at_once():
    rows = np.random.default_rng(0).normal(size=(32, 3))
    assert relative_bias(rows + 2, 1.0, 0.0).judged(0.05) is False
    assert relative_bias(np.nan * rows, 1.0, 0.0).judged(0.05) is False


def test_the_error_of_few_contexts_is_hardly_known():
    rows = 1 + 0.01 * np.random.default_rng(0).normal(size=(32, 1))
    of = lambda contexts: relative_bias(rows, 1.0, 0.2, contexts).judged(0.05)
    assert of(32) is False and of(8) is None
