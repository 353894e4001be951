"""Effective contexts, tails, and what those that were not met may add."""

import numpy as np
import pytest

from bilevelax.diagnostics.tails import DRAWS, EFFORT, LOOKS, Tails, alike, draws_for, tails_of

EQUAL = np.ones((32, 32))


def test_equal_contexts_carry_the_noise_together():
    found = tails_of(EQUAL, np.zeros(1))
    assert found.effective == pytest.approx(1024) and found.largest == 1 and found.n == 1024
    assert found.unmet == 0 and found.widened((2.0, 1.0, 4.0)) == (2.0, 1.0, 4.0)


def test_few_effective_contexts_widen_an_interval_by_what_was_not_met():
    """3 / n of M a / (a - 1): 3 / 100 * 5 * 4 / 3 = 0.2; below an index of 2 as at 2."""
    tails = Tails(effective=30.0, tail=4.0, largest=5.0, n=100)
    assert tails.unmet == pytest.approx(0.2)
    np.testing.assert_allclose(tails.widened((1.0, 0.81, 1.21)), (1.0, 0.49, 1.69))
    assert tails.widened((0.0, 0.01, 0.01))[1] == 0
    assert Tails(30.0, 0.5, 5.0, 100).unmet == pytest.approx(0.3)
    assert not tails.heavy and Tails(15.9, 4.0).heavy


def test_quick_looks_tell_how_far_the_largest_may_be():
    """One look in 8,192 is 30 times the root mean square: so far are the estimates' own contexts thought to reach."""
    scouts = np.ones(8192)
    scouts[0] = 900.0
    found = tails_of(EQUAL, scouts)
    assert found.largest == pytest.approx(30, rel=0.1)


def test_rounding_is_no_rare_context():
    """Gradients that differ by rounding, in some contexts: nothing is heavy about that."""
    rows, lanes = np.ones((32, 4), np.float32), np.zeros((32, 32))
    lanes[0, :3] = (3 * np.finfo(np.float32).eps) ** 2
    hidden = alike(rows, float(np.finfo(np.float32).eps))
    assert tails_of(lanes, np.ones(8192)).heavy
    assert not tails_of(lanes, np.ones(8192), hidden).heavy
    assert tails_of(1e4 * lanes, np.ones(8192), hidden).heavy, "what is no rounding counts"


def test_quick_looks_draw_less_where_draws_are_expensive():
    """All looks together make 2^27 numbers at most, but for one draw in each, which is the least."""
    assert draws_for(1) == draws_for(512) == DRAWS
    assert draws_for(1024) == 16 == EFFORT // (LOOKS * 1024)
    assert draws_for(10**6) == 1
