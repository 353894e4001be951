"""Intervals over seeds and exponents, and how they are printed."""

import numpy as np
import pytest

from bilevelax.base.statistics import Interval, bootstrap, exponent, mean
from bilevelax.base.text_table import three_digits


def test_statistics():
    assert exponent([1, 2, 4], [3, 24, 192]) == pytest.approx(3)
    rng = np.random.default_rng(0)
    inside = [0.0 in mean(rng.normal(size=5)) for _ in range(400)]
    assert 0.91 <= np.mean(inside) <= 0.98  # 0.95, three standard errors of 0.011
    found = bootstrap(np.mean, rng.normal(size=200))
    assert found.low < 0.07 < found.high + 0.3 and 0.2 < found.high - found.low < 0.36  # 2 * 1.96 / sqrt(200) = 0.28
    assert str(Interval(1.0, 0.5, 2.0)) == "1 [0.5, 2]"


@pytest.mark.parametrize("n", [4, 8])
def test_a_bootstrapped_mean_is_as_uncertain_as_students(n):
    """The plain percentile interval of 4 values is half as wide, of 8 values 0.78."""
    rng = np.random.default_rng(1)
    width = lambda interval: interval.high - interval.low
    samples = rng.normal(size=(20, n))
    assert np.mean([width(bootstrap(np.mean, s)) / width(mean(s)) for s in samples]) == pytest.approx(1, abs=0.08)


def test_resamples_without_an_answer_widen_the_interval():
    """nan unless at least 2 of 8 drawn values are positive: one resample in 28 has fewer."""
    samples = np.array([1.0, 2.0, 3.0, 1.5, -1.0, -1.0, -1.0, -1.0])
    positive = lambda s: float(np.mean(s[s > 0])) if np.sum(s > 0) > 1 else float("nan")
    found = bootstrap(positive, samples)
    assert found.value == pytest.approx(1.875) and (found.low, found.high) == (-np.inf, np.inf)
    late = lambda s: float(np.nan_to_num(positive(s), nan=np.inf))  # later than seen, not unknown
    assert 1 <= bootstrap(late, samples).low < 1.875 and bootstrap(late, samples).high == np.inf


def test_numbers_are_read_without_counting_zeros():
    shown = [three_digits(v) for v in (0.0, 1290.4, 999.6, -0.01034, 2.5, 3.4e7, 2e-5, float("nan"))]
    assert shown == ["0", "1,290", "1,000", "-0.0103", "2.5", "3.4e7", "2e-5", "nan"]
