"""Halves of samples."""

import numpy as np
import pytest

from bilevelax.exact.draws import halves


def test_halves_of_an_odd_number():
    for n in (2, 5, 6):
        first, second = halves(n)
        assert float(first.sum()) == pytest.approx(1) == float(second.sum())
        assert not np.any(first * second) and np.count_nonzero(first + second) == n
