"""`constants`, `check`, `certify`, `certified` and `tune` on the quadratic, whose answers are known."""

import dataclasses
import functools
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import typer
from jax import random

import bilevelax as bx
from bilevelax import applications, outer
from bilevelax import testing as bx_testing
from bilevelax.applications import quadratic as quadratic_application
from bilevelax.cli import check as command
from bilevelax.diagnostics.bias import relative_bias
from bilevelax.diagnostics.intervals import jackknife, squared_norm
from bilevelax.diagnostics.reference import only_contexts, reference
from bilevelax.estimators._levels import level_probabilities
from bilevelax.minibatch import lane_keys

SMALL = {"contexts": 8, "samples": 256, "n": 512}


def outcomes(report):
    return {row.name: row.ok for row in report.rows}


def failing(problem, x, key, estimator=None):
    report = bx.check(problem, x, key=key, estimator=estimator, **SMALL)
    assert not report.ok
    assert all(row.remedy for row in report.failed)
    return {row.name: row.remedy for row in report.failed}, str(report)


def plain_problem(f=None, mu_g=1.0, L_g1=4.0, bend=0.0):
    """No noise, hence quick to compile: y* = x, curvatures 1 - bend and 4."""
    curvature = jnp.array([1.0 - bend, 4.0])
    return bx.stochastic_bilevel(
        f=f or (lambda x, y, xi: jnp.sum((y - 1.0) ** 2) / 2 + jnp.sum(x**2) / 2),
        g=lambda x, y, eta: jnp.sum(curvature * y * (y / 2 - x)),
        sample_upper=lambda key, data: jnp.zeros(()),
        sample_lower=lambda key, data: jnp.zeros(()),
        init_y=lambda x: jnp.zeros(2),
        mu_g=mu_g,
        L_g1=L_g1,
    )


PLAIN_X = jnp.array([0.7, -0.4])
plain_gradient = bx.stateless(lambda key, problem, x: bx.Estimate(2 * x - 1.0, bx.Cost(xi=1), {}))


def linear_estimator(matrices, sign=1.0, noise=0.1):
    J = np.linalg.solve(matrices.A, matrices.B)

    def estimate(key, problem, x):
        """The exact gradient of the context, with noise: E xi = 0, so its mean is linear in x and xi."""
        key_xi, key_v = random.split(key)
        xi = problem.context(key_xi)
        G = np.linalg.solve(matrices.A, matrices.C)
        to_y = jnp.asarray(J) @ x + jnp.asarray(G) @ xi
        r = to_y - jnp.asarray(matrices.q) - jnp.asarray(matrices.R) @ xi + jnp.asarray(matrices.S.T) @ x
        grad = jnp.asarray(matrices.S) @ to_y + matrices.rho * x + jnp.asarray(J.T) @ r
        return bx.Estimate(sign * grad + noise * random.normal(key_v, x.shape), bx.Cost(xi=1), {})

    return bx.stateless(estimate)


# constants


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


def test_a_lower_level_that_is_not_convex_is_reported(key):
    problem = plain_problem(bend=3.5)
    found = bx.constants(problem, PLAIN_X, key=key, contexts=8)
    assert not found.strongly_convex
    assert found.mu_g == pytest.approx(-2.5)
    assert found.missing == pytest.approx(2.5)
    assert "NOT strongly convex" in str(found) and "add more than 2.5" in str(found)
    remedies, text = failing(problem, PLAIN_X, key)
    assert "add more than 2.5" in remedies["strongly convex in y"] and "mu_g=0" not in text
    assert text.startswith("FAILED: ")


# the reference that everything is held against


def test_reference_is_the_exact_gradient_of_each_context(quadratic, matrices, x, key):
    found = reference(key, quadratic, x, contexts=4, samples=512)
    J, G = np.linalg.solve(matrices.A, matrices.B), np.linalg.solve(matrices.A, matrices.C)
    for xi, grad, noise in zip(np.asarray(found.contexts), found.grads, found.noise, strict=True):
        y = J @ np.asarray(x) + G @ xi
        r = y - matrices.q - matrices.R @ xi + matrices.S.T @ np.asarray(x)
        exact = matrices.S @ y + matrices.rho * np.asarray(x) + J.T @ r
        assert np.linalg.norm(grad - exact) < 6 * np.linalg.norm(noise) + 0.05
    assert found.lower_grad_norm < 1e-8


def test_only_contexts_draws_nothing_else(quadratic, x, key):
    contexts = random.normal(key, (3, 2))
    few = only_contexts(quadratic, contexts)
    drawn = jax.vmap(few.context)(random.split(key, 50))
    distances = jnp.abs(drawn[:, None] - contexts[None]).sum(-1)
    assert (distances.min(1) == 0).all() and len(set(np.asarray(distances.argmin(1)).tolist())) == 3
    np.testing.assert_array_equal(few.conditional(key, contexts[0]), quadratic.conditional(key, contexts[0]))
    assert only_contexts(few, contexts) is few


# check


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
    report = bx.check(plain_problem(), PLAIN_X, key=key, estimator=plain_gradient, **SMALL)
    assert report.ok and str(report).startswith("OK: 8 checks passed.\n"), str(report)
    np.testing.assert_allclose(report.reference.grad, 2 * PLAIN_X - 1, rtol=1e-6)


def test_check_finds_too_small_K_and_N_and_beta0(key):
    inverse = bx.conjugate_gradient(1, 2)
    named = {
        "K": bx.dl_sgd(2, inverse=inverse),
        "N": bx.dl_sgd(9, inverse=bx.neumann(3)),
        "beta0": bx.dl_sgd(5, bx.epoch_sgd(0.2), inverse),
    }
    remedies, _ = failing(plain_problem(), PLAIN_X, key, named)
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
    remedies, _ = failing(plain_problem(**given), PLAIN_X, key, plain_gradient)
    assert list(remedies) == [row]
    assert remedy in remedies[row]


def test_check_reports_steps_that_diverge(key):
    remedies, _ = failing(plain_problem(), PLAIN_X, key, bx.dl_sgd(2, bx.epoch_sgd(4.0, cap=2.0)))
    assert "the first epoch steps 2 and diverges" in remedies["estimator: settings"]
    remedies, _ = failing(plain_problem(L_g1=None), PLAIN_X, key, bx.dl_sgd(5, bx.epoch_sgd(2.0), bx.dense(1)))
    assert "give cap <= 1 / (2 L_g1) = 0.125" in remedies["estimator: first step"]


def test_check_finds_a_wrong_derivative(key):
    @jax.custom_jvp
    def wrong(z):
        return z

    wrong.defjvp(lambda primals, tangents: (primals[0], 1.5 * tangents[0]))
    problem = plain_problem(f=lambda x, y, xi: jnp.sum(y**2) / 2 + jnp.sum(wrong(x) ** 2) / 2)
    remedies, _ = failing(problem, PLAIN_X, key, plain_gradient)
    assert "wrong custom derivative" in remedies["gradient against finite differences"]


def test_check_reports_structures_and_samplers(quadratic, x, key):
    problem = dataclasses.replace(quadratic, init_y=lambda x, xi: jnp.zeros(3))
    remedies, _ = failing(problem, x, key)
    assert "Make init_y and the samplers return what" in remedies["structures"]
    rng = np.random.default_rng(0)
    moving = dataclasses.replace(quadratic, sample_context=lambda key, data: jnp.asarray(rng.normal(size=2)))
    remedies, _ = failing(moving, x, key)
    assert "draw from its key only" in remedies["sample_context is deterministic"]


def test_noise_leaves_a_bias_open():
    rows = np.random.default_rng(0).normal(size=(64, 3))
    assert relative_bias(rows, 1.0, 0.0).decided(0.05) is None
    assert relative_bias(rows + 1, 1.0, 0.0).decided(0.05) is False
    assert relative_bias(1e-3 * rows, 1.0, 0.0).decided(0.05) is True
    assert relative_bias(np.full((4, 1), np.nan), 1.0, 0.0).decided(0.05) is False
    assert relative_bias(1e-3 * rows, 1.0, 1.0).decided(0.05) is None  # the reference is not better than that


# certify


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


def test_certify_is_unbiased(quadratic, matrices, x):
    estimator = linear_estimator(matrices, noise=1.0)
    certificates = [bx.certify(quadratic, x, key=random.key(i), n=64, estimator=estimator) for i in range(3)]
    assert len({c.estimate for c in certificates}) == 3 and certificates[0].n == 64
    # the same statistic, many times at once
    grads = jax.jit(jax.vmap(lambda key: estimator.estimate(key, quadratic, x, ())[0].grad))(
        random.split(random.key(9), 64_000)
    )
    estimates = [[squared_norm(rows, 0.95)[0]] for rows in np.asarray(grads).reshape(2000, 32, 3)]
    bx_testing.assert_mean(estimates, [np.sum(matrices.grad_F(np.asarray(x)) ** 2)], power=0.15)


def test_certificate_of_the_default_estimator(quadratic, matrices, x, key):
    found = bx.certify(quadratic, x, key=key, n=256)
    exact = np.sum(matrices.grad_F(np.asarray(x)) ** 2)
    assert found.of == "|grad F|^2" and str(found).startswith("|grad F|^2 = ")
    assert abs(found.estimate - exact) < 2.5 * (found.high - found.estimate) and found.high < 3 * exact
    other = bx.certify(quadratic, x, key=key, n=64, estimator=linear_estimator(matrices))
    assert other.of == "|E v|^2" and "its bias is not in this interval" in str(other)


def test_certify_uses_all_outcomes_where_they_are_known(key):
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: jnp.sum(y**2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - x - eta * xi) ** 2) / 2,
        contexts=jnp.array([[1.0], [1.0]]),
        outcomes=jnp.array([[[0.5], [1.5]], [[0.0], [2.0]]]),
        init_y=lambda x, xi: jnp.zeros(1),
    )
    found = bx.certify(problem, jnp.array([1.0]), key=key, n=32)  # y* = x + 1 in both contexts: no noise at all
    assert found.estimate == pytest.approx(4.0) and found.low == pytest.approx(4.0) == found.high


def test_certified_stops_a_run(quadratic, matrices, x, key):
    eps = 0.2
    run = bx.minimize(
        quadratic,
        linear_estimator(matrices),
        optax.sgd(0.02),
        x,
        key=key,
        T=2000,
        every=20,
        stop_when=bx.certified(eps, n=512, estimator=linear_estimator(matrices)),
    )
    last = run.history[-1]
    assert 0 < last["t"] < 2000
    assert np.linalg.norm(matrices.grad_F(np.asarray(run.x))) < eps
    assert last["grad2_high"] <= eps**2 < run.history[0]["grad2_high"]
    assert all({"grad2", "grad2_low", "grad2_high"} <= set(row) for row in run.history)


def test_a_rule_is_asked_at_the_start_with_addressed_keys(quadratic, matrices, x, key):
    asked = []

    def rule(problem, x, key):
        asked.append(random.key_data(key).tolist())
        return len(asked) == 3, {"looks": float(len(asked))}

    run = bx.minimize(quadratic, linear_estimator(matrices), optax.sgd(0.1), x, key=key, T=50, every=5, stop_when=rule)
    assert [row["looks"] for row in run.history] == [1, 2, 3] and run.history[-1]["t"] == 10
    assert len(set(map(tuple, asked))) == 3


# tune


def test_tune_prefers_less_variance_and_refuses_bias(quadratic, matrices, x, key):
    among = {
        "noisy": linear_estimator(matrices, noise=30.0),
        "wrong": linear_estimator(matrices, sign=-1.0, noise=0.01),
        "good": linear_estimator(matrices, noise=0.1),
    }
    among = {name: bx.minibatch(each, 8) for name, each in among.items()}
    tuned = bx.tune(quadratic, x, key=key, budget_seconds=60, among=among)
    assert tuned.choice == "good" and tuned.estimator is among["good"] and not tuned.skipped
    assert [trial.name for trial in tuned.trials][-1] == "wrong"
    assert "Chosen in" in str(tuned) and "ms x variance" in str(tuned)
    assert tuned.asdict()["trials"][0]["name"] == "good"


def test_tune_lists_what_the_budget_left_out(quadratic, matrices, x, key):
    among = {str(i): linear_estimator(matrices) for i in range(3)}
    tuned = bx.tune(quadratic, x, key=key, budget_seconds=1e-6, among=among)
    assert tuned.choice == "0" and tuned.skipped == ("1", "2")
    assert "No time for: 1, 2." in str(tuned)


def test_auto_is_refused_in_many_processes(quadratic, x, key, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="Call `tune` in one and pass its estimator to all"):
        bx.minimize(quadratic, "auto", optax.sgd(0.1), x, key=key, T=1)


def test_auto_runs_and_reports_the_tuning(key, monkeypatch):
    monkeypatch.setattr(outer, "tune", functools.partial(bx.tune, budget_seconds=1.0))
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - x - eta * xi) ** 2) / 2,
        contexts=random.normal(random.key(1), (4, 2)),
        outcomes=random.normal(random.key(2), (4, 3, 2)),
        init_y=lambda x, xi: jnp.zeros(2),
    )
    run = bx.minimize(problem, "auto", optax.sgd(0.1), jnp.zeros(2), key=key, T=60, every=30)
    tuning = run.manifest["tuning"]
    assert tuning["seconds"] > 0 and tuning["choice"].startswith("saa(n='all')")
    shift = jnp.mean(jnp.mean(problem.data.outcomes, axis=1) * problem.data.contexts, axis=0)
    np.testing.assert_allclose(run.x, 1 - shift, atol=0.1)


# bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, x, k: bx.constants(p, x, key=0), "`key` of constants must be one JAX random key"),
        (lambda p, x, k: bx.constants(p, x, key=k, contexts=0), "`contexts` of constants must be an integer >= 1"),
        (lambda p, x, k: bx.check(p, x, key=k, tol=-1.0), "`tol` of check must be a positive number"),
        (lambda p, x, k: bx.check(p, x, key=k, n=3), "`n` of check must be an integer >= 32"),
        (lambda p, x, k: bx.check(p, jnp.arange(3), key=k), "`x` of check must be floating point"),
        (lambda p, x, k: bx.certify(p, x, key=k, n=8), "`n` of certify must be an integer >= 32"),
        (lambda p, x, k: bx.certify(p, x, key=k, level=1.0), "`level` of certify must lie between 0 and 1"),
        (lambda p, x, k: bx.certified(0.0), "`eps` of certified must be a positive number"),
        (lambda p, x, k: bx.certified(0.1, level=2.0), "`level` of certified must lie between 0 and 1"),
        (lambda p, x, k: bx.tune(p, x, key=k, budget_seconds=0), "`budget_seconds` of tune must be a positive number"),
        (lambda p, x, k: bx.check(p, x, key=k, tol=None), "`tol` of check must be a positive number. Got None"),
        (
            lambda p, x, k: bx.tune(p, x, key=k, budget_seconds=None),
            "`budget_seconds` of tune must be a positive number",
        ),
        (lambda p, x, k: bx.tune(p, x, key=k, among={}), "`among` of tune must name at least one estimator"),
        (
            lambda p, x, k: bx.minimize(p, "best", optax.sgd(0.1), x, key=k, T=1),
            "`estimator` of minimize must be one of 'auto'. Got 'best'",
        ),
    ],
)
def test_bad_input(call, message, quadratic, x, key):
    with pytest.raises(ValueError, match=message):
        call(quadratic, x, key)


def test_certify_refuses_estimates_that_are_not_finite(quadratic, matrices, x, key):
    with pytest.raises(ValueError, match=r"certify needs finite gradients at x\. Got 32 of 32 .* Mend `estimator`"):
        bx.certify(quadratic, x, key=key, n=32, estimator=linear_estimator(matrices, noise=np.nan))


def test_the_command_prints_the_table_and_fails(monkeypatch, capsys):
    app = applications.Application(plain_problem(bend=3.5, mu_g=None), PLAIN_X, lambda x: {})
    monkeypatch.setitem(sys.modules, "my_problem", SimpleNamespace(app=app))
    with pytest.raises(typer.Exit) as left:
        command.check("my_problem:app", seed=0)
    assert left.value.exit_code == 1
    assert capsys.readouterr().out.startswith("my_problem:app: FAILED: 1 of ")


# correction_rate


def test_correction_rate_is_the_least_work_times_variance(quadratic, x, key):
    """Of (V_0 + sum V_l / p_l)(C_0 + sum p_l C_l), with V and C as the estimates of the pilot show them."""
    rate = bx.correction_rate(quadratic, x, key=key, n0=2, levels=3, contexts=64)
    levels = bx.antithetic_mlmc(2, 3, correction_rate=0.5).levels
    keys = lane_keys(key, 64)
    at = jax.jit(lambda level: jax.vmap(lambda key: levels.at_level(level, key, quadratic, x))(keys))
    base, one = at(jnp.int32(0)), at(jnp.int32(1))
    delta = levels.probabilities[1] * (one.grad - base.grad)
    V = [np.var(base.grad, axis=0, ddof=1).sum(), np.sum(delta**2, axis=1).mean()]
    n0, d_y = 2, 4
    work = lambda drawn, solved: drawn + (2 + 2 + 2 * d_y) * solved  # f, cross; 2 gradients; 2 d_y products
    C = [work(n0, n0), work(2 * n0, 4 * n0)]

    def product(r):
        p = r * np.array(level_probabilities(3, 0.5, 1.5)[1:]) / 0.5
        scale = np.arange(3)
        return (V[0] + np.sum(V[1] * 4.0**-scale / p)) * (C[0] + np.sum(C[1] * 2.0**scale * p))

    grid = rate * np.geomspace(0.5, 2, 201)
    assert grid[np.argmin([product(r) for r in grid])] == pytest.approx(rate, rel=0.01)
    assert product(rate) < 0.9 * product(4 * rate) and product(rate) < 0.9 * product(rate / 4)


def test_correction_rate_where_there_is_nothing_to_correct(x, key):
    """Constant Hessians: no difference, yet the rate stays positive and with it the mean that of the deepest level."""
    problem = quadratic_application.problem_of(quadratic_application.matrices(d_x=3, d_y=4, d_xi=2, hessian_noise=0.0))
    assert bx.correction_rate(problem, x, key=key, n0=2, contexts=16, factor=8, levels=None) == 1e-3


def test_correction_rate_refuses(quadratic, x, key):
    with pytest.raises(ValueError, match=r"`contexts` of correction_rate must be an integer >= 2\. Got 1"):
        bx.correction_rate(quadratic, x, key=key, contexts=1)
    with pytest.raises(ValueError, match=r"`factor` of antithetic_mlmc must be an integer >= 2\. Got 1"):
        bx.correction_rate(quadratic, x, key=key, factor=1)
