"""Intervals of squared norms: the jackknife, its weak band, and coverage."""

import numpy as np
import pytest

from bilevelax.diagnostics.intervals import jackknife, squared_norm


def test_squared_norm_is_the_jackknife_of_a_U_statistic():
    rows = np.random.default_rng(1).normal(size=(7, 3)) + 0.5

    def U(rows):
        products = rows @ rows.T
        return (products.sum() - np.trace(products)) / (len(rows) * (len(rows) - 1))

    left_out = [U(np.delete(rows, i, 0)) for i in range(7)]
    stderr = np.sqrt(6 / 7 * np.sum((left_out - np.mean(left_out)) ** 2))
    estimate, low, high = squared_norm(rows, 0.9)
    assert estimate == pytest.approx(U(rows))
    assert high >= U(rows) + 1.9431802803927816 * stderr - 1e-12  # t quantile, 6 degrees of freedom
    assert low == pytest.approx(max(0.0, U(rows) - 1.9431802803927816 * stderr))


def coverage(mean, sd, interval=squared_norm, repetitions=600):
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(repetitions):
        _, low, high = interval(mean + sd * rng.normal(size=(32, len(sd))), 0.95)
        inside.append(low <= mean @ mean <= high)
    return np.mean(inside)


@pytest.mark.parametrize("sd", [np.ones(1), np.array([3.0, 1.0, 1.0]), np.array([5.0] + 19 * [1.0])])
@pytest.mark.parametrize("ratio", [0.0, 1.5, 30.0])
def test_coverage_under_normal_noise(sd, ratio):
    """At zero, in the jackknife's weak band and at large gradients; along the noise's main direction."""
    mean = np.zeros(len(sd))
    mean[0] = ratio * sd[0] / np.sqrt(32)
    assert coverage(mean, sd) >= 0.93


def test_the_jackknife_alone_has_a_weak_band():
    """The negative control, and what it costs to close the band."""
    sd = np.ones(1)
    mean = 1.5 * sd / np.sqrt(32)
    assert 0.76 < coverage(mean, sd, jackknife) < 0.86
    rows = np.random.default_rng(3).normal(size=(300, 32, 1))
    ends = [np.sqrt(np.median([max(interval(r, 0.95)[2], 0) for r in rows])) for interval in (squared_norm, jackknife)]
    assert 1.3 < ends[0] / ends[1] < 2.0


def test_many_rows_are_grouped_across_their_order():
    rows = np.repeat([[-1.0], [1.0]], 128, axis=0)  # two contexts, one after the other: no noise at all in the mean
    assert squared_norm(rows, 0.99) == pytest.approx((0, 0, 0), abs=1e-12)
