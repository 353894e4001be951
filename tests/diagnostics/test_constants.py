"""Diagnostics where measurements mislead: few samples, vanishing gradients, survivors that turn out biased."""

import functools
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.cli import check as command
from bilevelax.compiling import LEVEL, jit_once
from bilevelax.diagnostics import certify
from bilevelax.diagnostics.bias import Bias, relative_bias
from bilevelax.diagnostics.constants import _highest
from bilevelax.diagnostics.reference import halves, reference
from bilevelax.diagnostics.tune import Trial, Tuned, best_first

SMALL = {"contexts": 4, "samples": 256, "n": 64}
X = jnp.array([0.7, -0.4])


def shifted(shift, noise):
    """grad F = x - 1 of `pull`, with a bias and noise of its own."""

    def estimate(key, problem, x):
        return bx.Estimate(x - 1.0 + shift + noise * random.normal(key, x.shape), bx.Cost(), {})

    return bx.stateless(estimate)


@functools.cache
def pull(d_x=2, d_y=2):
    """SBO without noise: y* = A x with A of ones on its diagonal; f is |y - 1|^2 / 2."""
    A = jnp.eye(d_y, d_x)
    return bx.stochastic_bilevel(
        f=lambda x, y, xi: jnp.sum((y - 1.0) ** 2) / 2,
        g=lambda x, y, eta: jnp.sum((y - A @ x) ** 2) / 2,
        sample_upper=lambda key, data: jnp.zeros(()),
        sample_lower=lambda key, data: jnp.zeros(()),
        init_y=lambda x: jnp.zeros(d_y),
        mu_g=1.0,
        L_g1=1.0,
    )


# tune


def trial(name, bias, seconds=1.0, variance=1.0):
    return Trial(name, None, 0.0, seconds, variance, bias, 16)


def test_a_survivor_found_biased_gives_way():
    clean, open_ = Bias(0.0, 0.0, 0.01), Bias(0.02, 0.0, 0.2)
    biased, worse, broken = Bias(0.2, 0.1, 0.3), Bias(0.4, 0.3, 0.5), Bias(np.nan, np.nan, np.inf)
    trials = [trial("survivor", worse), trial("dear", clean, 9.0), trial("open", open_), trial("least", biased)]
    names = lambda trials: [each.name for each in best_first(trials, 0.05)]
    assert names(trials) == ["dear", "open", "least", "survivor"]
    assert names([trial("nan", broken), *trials])[-1] == "nan"


def test_tune_does_not_return_what_it_measured_as_biased(key):
    """The bias of the first is seen by its second, longer measurement only."""
    among = {"biased": bx.minibatch(shifted(0.2, 0.45), 2), "clean": bx.minibatch(shifted(0.0, 3.0), 2)}
    tuned = bx.tune(pull(), X, key=key, budget_seconds=60, among=among)
    found = {each.name: each for each in tuned.trials}
    assert found["biased"].calls > found["clean"].calls  # it survived
    assert found["biased"].bias.decided(0.05) is False and found["clean"].bias.decided(0.05) is not False
    assert tuned.choice == "clean" and "Every candidate" not in str(tuned)


def test_tune_says_when_all_are_biased_and_refuses_when_none_is_finite(key):
    among = {"nan": shifted(0.0, np.nan), "wrong": shifted(3.0, 0.0), "less wrong": shifted(1.0, 0.0)}
    tuned = bx.tune(pull(), X, key=key, budget_seconds=60, among=among)
    assert [each.name for each in tuned.trials] == ["less wrong", "wrong", "nan"]
    assert "Every candidate measured is biased above 5 %: this one least." in str(tuned)
    assert isinstance(tuned, Tuned) and tuned.choice == "less wrong"
    with pytest.raises(ValueError, match=r"tune needs a candidate whose gradients .* Got none among nan; see"):
        bx.tune(pull(), X, key=key, budget_seconds=60, among={"nan": among["nan"]})


# constants


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


# the scale of biases


def test_terms_that_vanish_leave_rows_open(key):
    """f is at its own minimum where the gradient is zero: nothing to be relative to."""
    at = jnp.ones(2)
    assert reference(key, pull(), at, 4, 2).scale == 0 and reference(key, pull(), at + 1e-3, 4, 2).scale > 1e-4
    named = {"dl": bx.dl_sgd(8, inverse=bx.conjugate_gradient(1, 2)), "saa": bx.saa(2)}
    report = bx.check(pull(), at, key=key, estimator=named, **SMALL)
    rows = {row.name: row for row in report.rows}
    assert report.ok, str(report)
    for name in ("gradient against finite differences", "saa: gradient", "dl: gradient", "dl: lower level at K = 8"):
        assert rows[name].ok is None and "vanish at this x: check at another" in rows[name].remedy, name
    assert "undecided" in report.verdict


def test_the_implicit_term_has_a_size_where_it_is_zero(key):
    """y has a coordinate that x does not move: r is (0, 0, -1) at the optimum, and g12 r zero."""
    found = reference(key, pull(2, 3), jnp.ones(2), 4, 2)
    np.testing.assert_allclose(found.grad, 0, atol=1e-10)
    assert 0.1 < found.scale <= 1.0
    report = bx.check(pull(2, 3), jnp.ones(2), key=key, estimator=bx.saa(2), **SMALL)
    assert report.ok and {row.ok for row in report.rows} == {True}, str(report)


def test_a_relative_bias_without_scale_is_open():
    rows = np.random.default_rng(0).normal(size=(64, 3))
    assert relative_bias(rows, 0.0, 0.0).decided(0.05) is None
    assert relative_bias(np.nan * rows, 0.0, 0.0).decided(0.05) is False


def test_halves_of_an_odd_number():
    for n in (2, 5, 6):
        first, second = halves(n)
        assert float(first.sum()) == pytest.approx(1) == float(second.sum())
        assert not np.any(first * second) and np.count_nonzero(first + second) == n


# minibatches of multilevel estimators


def test_levels_inside_a_minibatch_stay_unvectorised(quadratic, x, key):
    """In a vmap every lane would run all levels: a `cond` becomes a `select`, a `while` runs to the longest."""
    assert certify.batched(bx.minibatch(bx.rt_mlmc(3), 4), 8).batch.mode == "loop"
    assert certify.batched(bx.rt_mlmc(3), 8).batch.mode == "stratified"


def test_a_second_certificate_compiles_nothing(key):
    traces = []

    def estimate(key, problem, x):
        traces.append(1)
        return bx.Estimate(x + random.normal(key, x.shape), bx.Cost(), {})

    estimator, problem = bx.stateless(estimate), pull()
    first, second = (bx.certify(problem, X, key=random.key(i), n=64, estimator=estimator) for i in range(2))
    assert len(traces) == 1 and first.estimate != second.estimate


# the command


@pytest.mark.parametrize("make", [lambda pair: pair, lambda pair: lambda: pair])
def test_the_command_takes_a_problem_with_its_x(make, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "my_problem", SimpleNamespace(pair=make((pull(), X))))
    command.check("my_problem:pair", estimator="saa", seed=0)
    assert capsys.readouterr().out.startswith("my_problem:pair: OK: ")


def test_the_command_says_that_an_x_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_problem", SimpleNamespace(problem=pull()))
    with pytest.raises(ValueError, match=r"must be an Application, a pair \(problem, x\) or an Estimator. Got Problem"):
        command.check("my_problem:problem", seed=0)


@pytest.mark.parametrize(("flags", "options"), [("", {LEVEL: 1}), (f"--{LEVEL}=0", None)])
def test_a_level_in_the_environment_is_respected(flags, options, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert jit_once(static_argnames="n").keywords == {"compiler_options": options, "static_argnames": "n"}
    double = jit_once(static_argnames="n")(lambda x, n: n * x)
    assert float(double(jnp.ones(()), n=2)) == 2
