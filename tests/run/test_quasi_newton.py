"""Descent on a fixed function: L-BFGS as SciPy's, values hidden by rounding, kinks and constraints."""

import itertools

import numpy as np
import pytest
import scipy.optimize

from bilevelax.run.quasi_newton import Line, descent, no_curvature, stationarity
from bilevelax.run.sampled import Point

NONE = np.zeros(0)


def of(function, gradient):
    return lambda x: Point(np.array(x), float(function(x)), np.asarray(gradient(x)), *[NONE] * 4, 1.0, 0.0)


ROSEN = of(scipy.optimize.rosen, scipy.optimize.rosen_der)


def test_a_curved_valley_takes_about_as_long_as_scipy_takes():
    start = np.asarray([-1.2, 1.0])
    path = itertools.takewhile(
        lambda found: stationarity(found[0], None) > 1e-7, descent(ROSEN, ROSEN(start), no_curvature(2), None)
    )
    *_, (point, known) = steps = list(path)
    scipys = scipy.optimize.minimize(scipy.optimize.rosen, start, jac=scipy.optimize.rosen_der, method="L-BFGS-B")
    np.testing.assert_allclose(point.x, 1.0, atol=1e-2)
    assert len(steps) < 2 * scipys.nit and known.bent  # Rosenbrock's function is not convex


def test_a_bowl_does_not_bend():
    A = np.diag([1.0, 10.0, 100.0])
    at = of(lambda x: x @ A @ x / 2, lambda x: A @ x)
    for point, known in descent(at, at(np.ones(3)), no_curvature(3), None):
        assert not known.bent
        if stationarity(point, None) < 1e-10:
            break
    np.testing.assert_allclose(point.x, 0, atol=1e-9)


@pytest.mark.parametrize("values", [np.float32, np.float64])
def test_rounding_of_values_does_not_end_it(values):
    """F in single precision around 1000: near the minimum only slopes tell."""
    A = np.diag([1.0, 3.0, 20.0])
    at = of(lambda x: values(1000 + x @ A @ x / 2), lambda x: A @ x)
    points = [point for point, _ in itertools.islice(descent(at, at(np.ones(3)), no_curvature(3), None), 40)]
    assert min(stationarity(point, None) for point in points) < 1e-6


def test_a_kink_ends_it():
    at = of(lambda x: np.abs(x).sum(), np.sign)
    points = list(itertools.islice(descent(at, at(np.asarray([1.0, 0.3])), no_curvature(2), None), 200))
    assert len(points) < 200 and np.abs(points[-1][0].x).max() < 1e-3


def test_the_projected_gradient_finds_the_corner_that_is_lowest():
    A, b = np.asarray([[3.0, 1.0], [1.0, 2.0]]), np.asarray([4.0, -3.0])
    at = of(lambda x: x @ A @ x / 2 - b @ x, lambda x: A @ x - b)
    project = lambda x: np.clip(x, 0.0, 1.0)
    for point, _ in descent(at, at(np.asarray([0.5, 0.5])), no_curvature(2), project):
        assert (point.x >= 0).all() and (point.x <= 1).all()
        if stationarity(point, project) < 1e-8:
            break
    found = scipy.optimize.minimize(lambda x: x @ A @ x / 2 - b @ x, [0.5, 0.5], bounds=[(0, 1)] * 2)
    np.testing.assert_allclose(point.x, found.x, atol=1e-6)


def test_infinite_values_are_stepped_back_from():
    at = of(lambda x: -np.log(x[0]) + x[0] if x[0] > 0 else np.nan, lambda x: 1 - 1 / x)
    line = Line(at, at(np.asarray([0.1])), np.asarray([-1.0]) * (1 - 1 / 0.1) * 100)
    assert line.wolfe().F < line.start.F
