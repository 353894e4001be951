"""`constants`: curvature of the lower level, and what few samples cannot tell."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from diagnosed import SMALL, X
from jax import random

import bilevelax as bx
from bilevelax.diagnostics.constants import _highest


def test_constants_of_the_quadratic(quadratic, matrices, x, key):
    found = bx.constants(quadratic, x, key=key, contexts=4, samples=256)
    assert found.mu_g == pytest.approx(matrices.eigenvalues.min(), rel=0.05)
    assert 0.9 * quadratic.L_g1 <= found.L_g1 <= quadratic.L_g1  # the largest of a sample: a bound from below
    assert found.sample_mu >= quadratic.mu_g
    assert found.mu_spread.low <= found.mu_spread.median <= found.mu_spread.high
    assert found.strongly_convex and found.missing == 0
    assert "Strongly convex" in str(found) and "condition number" in str(found)


def test_constants_by_lanczos_without_noise(key):
    """d_y above the dense limit: both ends of a known spectrum."""
    eigenvalues = np.linspace(0.5, 7.0, 40)
    problem = bx.stochastic_bilevel(
        f=lambda x, y, xi: jnp.sum(y**2),
        g=lambda x, y, eta: jnp.sum(jnp.asarray(eigenvalues) * (y - x) ** 2) / 2,
        sample_upper=lambda key, data: jnp.zeros(()),
        sample_lower=lambda key, data: jnp.zeros(()),
        init_y=lambda x: jnp.zeros(40),
    )
    found = bx.constants(problem, jnp.ones(40), key=key, contexts=1, samples=1)
    assert found.mu_g == pytest.approx(0.5, rel=1e-2)
    assert found.L_g1 == pytest.approx(7.0, rel=1e-2)


@functools.cache
def regression(d, mu_g=1.0):
    """g = (a'(y - x))^2 / 2 with normal a: E g has curvature 1 in every direction, samples have rank one."""
    return bx.stochastic_bilevel(
        f=lambda x, y, xi: jnp.sum((y - 1.0) ** 2) / 2 + jnp.sum(x**2) / 2,
        g=lambda x, y, eta: (eta @ (y - x)) ** 2 / 2,
        sample_upper=lambda key, data: jnp.zeros(()),
        sample_lower=lambda key, data: random.normal(key, (d,)),
        init_y=lambda x: jnp.zeros(d),
        mu_g=mu_g,
    )


@pytest.fixture(scope="module")
def of_twenty():
    return {
        n: bx.constants(regression(20), jnp.ones(20), key=random.key(0), contexts=2, samples=n) for n in (16, 64, 4096)
    }


def test_few_samples_lower_mu_g_and_it_is_said(of_twenty):
    """(1 - sqrt(d / n))^2 instead of 1: 0 at n = 16, 0.19 at 64, 0.87 at 4096."""
    found = of_twenty[64]
    assert found.mu_g == pytest.approx(0.19, abs=0.08) and found.mu_high == np.inf
    assert "mu_g may be larger: the mean of 64 samples has less curvature than E g; raise `samples`." in str(found)
    assert of_twenty[16].mu_g == pytest.approx(0, abs=1e-6) and of_twenty[16].mu_high == np.inf
    assert "it cannot be told" in str(of_twenty[16]) and "NOT" not in str(of_twenty[16])
    many = of_twenty[4096]
    assert 0.8 < many.mu_g < 0.92 and many.mu_high == pytest.approx(1.0, abs=0.12)
    assert "may be larger" not in str(many)


def test_what_mu_g_may_be():
    whole = np.array([2.0, 1.0])
    assert _highest(np.stack([whole, whole, whole], -1), 4.0, 64, 3) == 1.0  # no noise
    half = np.stack([whole, [1.9, 0.95], [2.0, 1.0]], -1)
    assert _highest(half, 4.0, 64, 3) == pytest.approx(1 + 0.05 / (np.sqrt(2) - 1))
    assert _highest(np.stack([whole, whole - 0.3, whole], -1), 4.0, 64, 3) == np.inf
    assert _highest(np.zeros((1, 3)), 4.0, 64, 3) == 0.0 and _highest(np.zeros((1, 3)), 4.0, 3, 3) == np.inf
    assert _highest(np.full((1, 3), -2.0), 4.0, 2, 3) == -2.0
    assert np.isnan(_highest(np.full((1, 3), np.nan), 4.0, 64, 3))


@pytest.mark.parametrize(("samples", "convex"), [(16, None), (64, True)])
def test_check_leaves_open_what_few_samples_cannot_tell(samples, convex, key):
    exact = bx.stateless(lambda key, problem, x: bx.Estimate(2 * x - 1.0, bx.Cost(), {}))
    report = bx.check(regression(20), jnp.ones(20), key=key, estimator=exact, contexts=2, samples=samples, n=64)
    rows = {row.name: row for row in report.rows}
    assert rows["strongly convex in y"].ok is convex and rows["mu_g"].ok is None
    assert "raise samples" in rows["mu_g"].remedy
    assert "estimator: gradient" in rows  # it went on


def test_check_still_finds_a_wrong_mu_g(key):
    """Curvature 1 measured on samples enough, 3 given."""
    exact = bx.stateless(lambda key, problem, x: bx.Estimate(2 * x - 1.0, bx.Cost(), {}))
    report = bx.check(regression(1, mu_g=3.0), jnp.ones(1), key=key, estimator=exact, contexts=2, samples=2048, n=64)
    assert [row.name for row in report.failed] == ["mu_g"], str(report)


def test_a_problem_whose_eta_holds_nothing(key):
    """Plain stochastic optimization: its lower level is a dummy and eta is ()."""
    problem = bx.stochastic(lambda x, xi: jnp.sum((x - xi) ** 2) / 2, lambda key, data: random.normal(key, (2,)))
    found = bx.constants(problem, X, key=key, contexts=2)
    assert (found.mu_g, found.L_g1, found.mu_high) == (1.0, 1.0, 1.0)
    report = bx.check(problem, X, key=key, estimator=bx.rt_mlmc(1), **{**SMALL, "n": 1024})
    assert report.ok and {row.ok for row in report.rows if "gradient" in row.name} == {True}, str(report)


@pytest.mark.parametrize(("bend", "told"), [(0.0, False), (2.0, True)])
def test_another_minimum_farther_away_is_told(bend, told, key):
    """Ripples in a valley: convex where the follower starts and ends."""
    problem = bx.stochastic_bilevel(
        f=lambda x, y, xi: jnp.sum(y**2),
        g=lambda x, y, eta: jnp.sum((y - x) ** 2 / 2 + bend * jnp.sin(2 * (y - x)) ** 2),
        sample_upper=lambda key, data: jnp.zeros(()),
        sample_lower=lambda key, data: jnp.zeros(()),
        init_y=lambda x: x + 0.05,
    )
    found = bx.constants(problem, jnp.ones(4), key=key, contexts=8, samples=2)
    assert found.strongly_convex and found.bends_far == told
    assert ("another minimum may lie there" in str(found)) == told
