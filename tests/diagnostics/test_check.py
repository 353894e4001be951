"""`check`: what is right passes, and every mistake is found and told with its remedy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnosed import X, linear_estimator, plain_gradient, plain_problem
from jax import random

import bilevelax as bx
from bilevelax.testing.adversarial.case import plain

SMALL = {"contexts": 8, "samples": 256, "n": 512}


def outcomes(report):
    return {row.name: row.ok for row in report.rows}


def failing(problem, x, key, estimator=None):
    report = bx.check(problem, x, key=key, estimator=estimator, **SMALL)
    assert not report.ok
    assert all(row.remedy for row in report.failed)
    return {row.name: row.remedy for row in report.failed}, str(report)


def test_check_on_the_quadratic(quadratic, x, matrices, key):
    """The right gradient and the parts of RT-MLMC pass; the same gradient with the wrong sign does not."""
    named = {
        "exact": linear_estimator(matrices),
        "rt": bx.rt_mlmc(5, inverse=bx.conjugate_gradient(64, 4), batch=8),
        "sign": linear_estimator(matrices, sign=-1.0),
    }
    report = bx.check(quadratic, x, key=key, estimator=named, **SMALL)
    found = outcomes(report)
    assert [row.name for row in report.failed] == ["sign: gradient"], str(report)
    assert "look for a sign error" in report.failed[0].remedy
    for name in ("mu_g", "L_g1", "exact: gradient", "rt: mu_g beta0", "rt: first step", "rt: lower level at K = 5"):
        assert found[name] is True, str(report)
    assert {"rt: inverse Hessian (N)", "rt: gradient"} <= set(found)
    assert str(report).startswith(f"FAILED: 1 of {len(report.rows)} checks; first: sign: gradient.")


def test_check_passes_and_says_so(key):
    report = bx.check(plain_problem(), X, key=key, estimator=plain_gradient, **SMALL)
    assert report.ok and str(report).startswith("OK: 14 checks passed.\n"), str(report)
    np.testing.assert_allclose(report.reference.grad, 2 * X - 1, rtol=1e-6)


def test_a_lower_level_that_is_not_convex_is_reported(key):
    problem = plain_problem(bend=3.5)
    found = bx.constants(problem, X, key=key, contexts=8)
    assert not found.strongly_convex
    assert found.mu_g == pytest.approx(-2.5)
    assert found.missing == pytest.approx(2.5)
    assert "NOT strongly convex" in str(found) and "add more than 2.5" in str(found)
    remedies, text = failing(problem, X, key)
    assert "add more than 2.5" in remedies["strongly convex in y"] and "mu_g=0" not in text
    assert text.startswith("FAILED: ")


def test_check_finds_too_small_K_and_N_and_beta0(key):
    inverse = bx.conjugate_gradient(1, 2)
    named = {
        "K": bx.dl_sgd(2, inverse=inverse),
        "N": bx.dl_sgd(9, inverse=bx.neumann(3)),
        "beta0": bx.dl_sgd(5, bx.epoch_sgd(0.2), inverse),
    }
    remedies, _ = failing(plain_problem(), X, key, named)
    assert "raise K to about" in remedies["K: lower level at K = 2"]
    assert "raise N of the series to about 35" in remedies["N: inverse Hessian (N)"]
    assert "raise beta0 from 0.2 to 1 / mu_g = 1" in remedies["beta0: mu_g beta0"]
    assert {"K: gradient", "N: gradient"} <= set(remedies)
    assert not {"K: mu_g beta0", "K: inverse Hessian (N)", "N: mu_g beta0", "N: lower level at K = 9"} & set(remedies)
    assert {name.split(":")[0] for name in remedies} == set(named)


@pytest.mark.parametrize(
    ("given", "row", "remedy"),
    [
        ({"mu_g": 3.0}, "mu_g", "give Problem(mu_g=1) or less"),
        ({"L_g1": 2.0}, "L_g1", "give Problem(L_g1=4.4) or more: it must bound every sample's Hessian"),
    ],
)
def test_check_finds_wrong_constants(given, row, remedy, key):
    remedies, _ = failing(plain_problem(**given), X, key, plain_gradient)
    assert list(remedies) == [row]
    assert remedy in remedies[row]


def test_check_reports_steps_that_diverge(key):
    remedies, _ = failing(plain_problem(), X, key, bx.dl_sgd(2, bx.epoch_sgd(4.0, cap=2.0)))
    assert "the first epoch steps 2 and diverges" in remedies["estimator: settings"]
    remedies, _ = failing(plain_problem(L_g1=None), X, key, bx.dl_sgd(5, bx.epoch_sgd(2.0), bx.dense(1)))
    assert "give cap <= 1 / (2 L_g1) = 0.125" in remedies["estimator: first step"]


def test_check_finds_a_wrong_derivative(key):
    @jax.custom_jvp
    def wrong(z):
        return z

    wrong.defjvp(lambda primals, tangents: (primals[0], 1.5 * tangents[0]))
    problem = plain_problem(f=lambda x, y, xi: jnp.sum(y**2) / 2 + jnp.sum(wrong(x) ** 2) / 2)
    remedies, _ = failing(problem, X, key, plain_gradient)
    assert "wrong custom derivative" in remedies["gradient against finite differences"]


def test_check_reports_structures_and_samplers(quadratic, x, key):
    problem = dataclasses.replace(quadratic, init_y=lambda x, xi: jnp.zeros(3))
    remedies, _ = failing(problem, x, key)
    assert "Make init_y and the samplers return what" in remedies["structures"]
    rng = np.random.default_rng(0)
    moving = dataclasses.replace(quadratic, sample_context=lambda key, data: jnp.asarray(rng.normal(size=2)))
    remedies, _ = failing(moving, x, key)
    assert "draw from its key only" in remedies["sample_context is deterministic"]


def test_dtypes_that_differ_are_told(key):
    """Coarse data are allowed, so the row is ok; what is coarse is said."""
    from bilevelax.diagnostics.check import _structure

    def found(problem, x):
        row = next(row for row in _structure(problem, x, key) if row.name == "structures")
        assert row.ok, row.remedy
        return row.value

    coarse = lambda key, *rest: random.normal(key, (2,), jnp.float32)
    f = lambda x, y, eta, xi: jnp.sum((y - xi.astype(float)) ** 2)
    g = lambda x, y, eta, xi: jnp.sum((y - x.astype(float) - eta.astype(float)) ** 2)
    x, y = jnp.ones(2), "y = float64[2]"
    assert found(plain(f, g), x) == y
    assert found(plain(f, g, sample_conditional=coarse), x) == f"{y}; eta is float32, x float64"
    lossy = plain(f, lambda *args: g(*args).astype(jnp.float32), sample_context=coarse)
    assert found(lossy, x) == f"{y}; xi is float32, x float64; g is float32, x float64"
    assert "y is float64, x float32" in found(plain(f, g), x.astype(jnp.float32))
