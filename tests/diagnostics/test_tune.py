"""`tune` and 'auto': less variance for its time, no bias, and survivors that turn out biased."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import programs
from diagnosed import X, linear_estimator, pull
from jax import random

import bilevelax as bx
from bilevelax.diagnostics.averages import Calls, Lanes, averages, calls_of, pilot_rate
from bilevelax.diagnostics.bench import Trial
from bilevelax.diagnostics.bias import Bias
from bilevelax.diagnostics.candidates import SIZES, candidates, named_candidate
from bilevelax.diagnostics.estimates import batch_means
from bilevelax.diagnostics.tune import Tuned, best_first


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


@pytest.fixture(scope="module")
def in_no_time(quadratic, x):
    """The library's candidates, with a budget for none of them."""
    new = quadratic.replace(init_y=lambda x, xi: quadratic.init_y(x, xi))  # of which nothing was compiled before
    with programs() as compiled:
        tuned = bx.tune(new, x, key=random.key(0), budget_seconds=1e-6, contexts=4)
    return tuned, compiled


def test_five_candidates_are_measured_by_one_program(in_no_time):
    """Whatever the budget: they differ in numbers only. Beside it the reference is compiled, and nothing else."""
    tuned, compiled = in_no_time
    assert sorted(t.name for t in tuned.trials) == sorted(f"saa(n={n}), 4 contexts" for n in SIZES)
    assert len(SIZES) >= 5 and all(t.calls >= 16 and t.seconds > 0 for t in tuned.trials)
    assert [name for name in compiled if name in ("_solved", "averages", "means")] == ["_solved", "averages"]
    assert len(compiled) <= 5


def test_what_was_not_measured_is_never_chosen_over_what_was(in_no_time, quadratic, x, key):
    tuned, _ = in_no_time
    assert tuned.choice in {t.name for t in tuned.trials} and tuned.choice == tuned.trials[0].name
    assert not set(tuned.skipped) & {t.name for t in tuned.trials}
    assert any(name.startswith("antithetic_mlmc(n0=8, correction_rate=") for name in tuned.skipped)
    among = {"biased": shifted(5.0, 0.01), "better, not measured": shifted(0.0, 0.01)}
    only = bx.tune(pull(), X, key=key, budget_seconds=1e-6, among=among)
    assert only.choice == "biased" and only.skipped == ("better, not measured",)
    assert bx.tune(pull(), X, key=key, budget_seconds=60, among=among).choice == "better, not measured"


@pytest.mark.parametrize("how", ["independent", "spread"])
def test_the_shared_program_gives_the_numbers_of_saa(logistic, key, how):
    """Calls of every size with the draws of `minibatch(saa(n), m)`, to rounding; contexts drawn either way."""
    x, lanes = jnp.linspace(-1.0, 1.0, 4), Lanes(4, how)
    contexts = jax.vmap(logistic.nth_context)(jnp.arange(3))
    for n in (5, 32):
        together = averages(key, logistic, x, contexts, calls_of(n, 2), lanes)[0]
        estimator = bx.minibatch(bx.saa(n), 4, contexts=how)
        alone = batch_means(key, logistic, x, contexts, estimator=estimator, batches=2)
        np.testing.assert_allclose(np.mean(together, axis=1), alone, rtol=1e-6, atol=1e-9)


def test_the_shared_program_takes_any_range_of_samples(quadratic, x, key):
    """Ranges of one call: their mean is the whole's where g is quadratic with a constant Hessian, and costs add up."""
    contexts, lanes = random.normal(key, (2, 2)), Lanes(2, "independent")
    one = np.zeros(2, np.int32)
    calls = Calls(one, np.array([0, 8], np.int32), np.array([8, 5], np.int32))
    first, cost, _ = averages(key, quadratic, x, contexts, calls, lanes)
    again, *_ = averages(key, quadratic, x, contexts, calls._replace(start=one + 8, size=one + 5), lanes)
    np.testing.assert_allclose(first[1], again[0], rtol=1e-12)
    assert not np.allclose(first[0], first[1])
    np.testing.assert_array_equal(cost.eta, [[8, 8], [5, 5]])


def test_the_pilot_of_tune_finds_the_rate_of_correction_rate(quadratic, x, key):
    """Other draws, the same ratio of variances and work; and a rate that its name tells."""
    contexts = random.normal(key, (32, 2))
    found = pilot_rate(key, quadratic, x, contexts, Lanes(256, "independent"))
    assert found == pytest.approx(
        bx.correction_rate(quadratic, x, key=key, n0=8, levels=2, factor=8, contexts=256), rel=0.5
    )
    made = {each.name: each for each in candidates(quadratic, 4, rate=found)}
    name = f"antithetic_mlmc(n0=8, correction_rate={found:.3g}), 4 contexts"
    rates = made[name].estimator.settings.estimator.levels.probabilities
    assert 1 - rates[0] == pytest.approx(found)


@pytest.mark.parametrize(
    "name", ["saa(n=16), 32 contexts", "antithetic_mlmc(n0=8, correction_rate=0.0123), 32 contexts"]
)
def test_a_choice_is_found_again_by_its_name(quadratic, name):
    found = named_candidate(quadratic, name, 1).settings
    assert found.m == 32
    if "antithetic" in name:
        assert found.estimator.levels.probabilities[0] == pytest.approx(1 - 0.0123)
    with pytest.raises(KeyError):
        named_candidate(quadratic, "antithetic_mlmc(n0=9, correction_rate=0.1), 32 contexts", 1)


def test_nothing_else_is_measured_where_the_gradient_is_exact(logistic, key):
    tuned = bx.tune(logistic, jnp.ones(4), key=key, budget_seconds=60)
    assert [t.name for t in tuned.trials] == ["saa(n='all'), 3 contexts, spread"] and not tuned.skipped


def test_auto_is_refused_in_many_processes(quadratic, x, key, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="Call `tune` in one and pass its estimator to all"):
        bx.minimize(quadratic, "auto", optax.sgd(0.1), x, key=key, T=1)


def test_auto_runs_and_reports_the_tuning(key, monkeypatch):
    monkeypatch.setattr("bilevelax.diagnostics.tune.tune", functools.partial(bx.tune, budget_seconds=1.0))
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


def trial(name, bias, seconds=1.0, variance=1.0):
    return Trial(name, None, 0.0, seconds, variance, bias, 16)


def test_a_survivor_found_biased_gives_way():
    clean, open_ = Bias(0.0, 0.0, 0.01), Bias(0.02, 0.0, 0.2)
    biased, worse, broken = Bias(0.2, 0.1, 0.3), Bias(0.4, 0.3, 0.5), Bias(np.nan, np.nan, np.inf)
    trials = [trial("survivor", worse), trial("dear", clean, 9.0), trial("open", open_), trial("least", biased)]
    names = lambda trials: [each.name for each in best_first(trials, 0.05)]
    assert names(trials) == ["dear", "open", "least", "survivor"]
    assert names([trial("nan", broken), *trials])[-1] == "nan"


def shifted(shift, noise):
    """grad F = x - 1 of `pull`, with a bias and noise of its own."""

    def estimate(key, problem, x):
        return bx.Estimate(x - 1.0 + shift + noise * random.normal(key, x.shape), bx.Cost(), {})

    return bx.stateless(estimate)


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
