"""The outer loop against plain optax, its records, and what it does when things go wrong."""

import csv
import dataclasses
import json
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.run import steps
from bilevelax.testing import assert_mean

TARGET = {"w": jnp.arange(3.0), "b": jnp.asarray(2.0)}
X1 = {"w": jnp.ones(3), "b": jnp.asarray(-1.0)}


def exact(problem, x):
    return jax.tree.map(lambda a, b: a - b, x, TARGET)


EXACT = bx.stateless(lambda key, problem, x: bx.Estimate(exact(problem, x), bx.Cost(xi=1, eta=2), {"level": 3}))


@pytest.fixture(scope="module")
def trivial():
    """A problem that only has to be well formed: `EXACT` never looks at it."""
    return bx.stochastic(lambda x, xi: jnp.sum(x["w"]) + x["b"], lambda key, data: random.normal(key))


def test_minimize_is_plain_optax_bit_for_bit(trivial, key):
    with jax.numpy_dtype_promotion("standard"):  # optax.adam needs it
        optimizer = optax.adam(bx.sqrt_then_linear(7, 0.1))
        result = bx.minimize(trivial, EXACT, optimizer, X1, key=key, T=25, every=10)

        @jax.jit
        def plain(x):
            def step(_, carry):
                x, state = carry
                updates, state = optimizer.update(exact(trivial, x), state, x)
                return optax.apply_updates(x, updates), state

            return jax.lax.fori_loop(0, 25, step, (x, optimizer.init(x)))[0]

        expected = plain(X1)
    jax.tree.map(np.testing.assert_array_equal, result.x, expected)
    assert [row["t"] for row in result.history] == [0, 10, 20, 25]
    assert result.cost == bx.Cost(xi=25, eta=50)
    assert result.history[-1]["eta"] == 50 and result.history[-1]["level"] == 3.0


def test_averages(trivial, key):
    """Step 1/2 towards the target: x_t = target + 2^{1-t} (x_1 - target), so the mean is known."""
    T = 12
    result = bx.minimize(trivial, EXACT, optax.sgd(0.5), X1, key=key, T=T, every=5)
    weights = 0.5 ** np.arange(T)
    for name in X1:
        gap = np.asarray(X1[name] - TARGET[name])
        np.testing.assert_allclose(result.x[name], TARGET[name] + gap * 0.5**T, rtol=1e-12)
        np.testing.assert_allclose(result.x_mean[name], TARGET[name] + gap * weights.mean(), rtol=1e-12)


def test_x_hat_is_uniform_on_the_iterates(trivial):
    """x_t is t - 1 here; over 4,000 keys its mean is that of 0..5, and every iterate but the last turns up."""
    up = bx.stateless(lambda key, problem, x: bx.Estimate(-jnp.ones(()), bx.Cost(), {}))
    problem = bx.stochastic(lambda x, xi: x, lambda key, data: ())
    run = partial(steps.chunk.__wrapped__, estimator=up, optimizer=optax.sgd(1.0), every=6)
    carry = steps.initial_carry(problem, up, optax.sgd(1.0), jnp.zeros(()))
    hats = jax.jit(jax.vmap(lambda key: run(problem, carry, key, 6)[0].x_hat))(random.split(random.key(1), 4_000))
    counts = jax.nn.one_hot(hats.astype(int), 7)
    assert_mean(counts, [1 / 6] * 6 + [0], power=0.05)


def test_nothing_is_traced_again_between_chunks_seeds_and_last_chunks(trivial):
    traces = 0

    def count(key, problem, x):
        nonlocal traces
        traces += 1
        return bx.Estimate(exact(problem, x), bx.Cost(), {})

    estimator, optimizer = bx.stateless(count), optax.sgd(0.1)
    for seed in range(3):
        bx.minimize(trivial, estimator, optimizer, X1, key=random.key(seed), T=23, every=10)
        if seed == 0:
            first = traces
    assert traces == first <= 2  # one for the shapes of the log, one for the loop


def test_metrics_and_callbacks(trivial, key, tmp_path):
    seen = []
    result = bx.minimize(
        trivial,
        EXACT,
        optax.sgd(0.5),
        X1,
        key=key,
        T=6,
        every=2,
        metrics=lambda x: {"b": x["b"]},
        callbacks=[lambda row, x: seen.append((row["t"], float(x["b"]))), bx.append_to(tmp_path / "rows.jsonl")],
    )
    assert seen == [(row["t"], row["b"]) for row in result.history[1:]]
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == result.history[1:]


def test_projection_composes_with_any_optimizer(trivial, key):
    box = lambda x: jax.tree.map(lambda a: optax.projections.projection_box(a, -1.0, 1.25), x)
    with jax.numpy_dtype_promotion("standard"):
        adam = optax.adam(optax.linear_schedule(0.3, 0.0, 300))
        result = bx.minimize(trivial, EXACT, bx.projected(adam, box), X1, key=key, T=300)
    np.testing.assert_allclose(result.x["w"], [0.0, 1.0, 1.25], atol=1e-2)
    assert float(result.x["w"][2]) == pytest.approx(1.25, abs=1e-15) == float(result.x["b"])


def test_save_and_load(trivial, key, tmp_path):
    x1 = {"w": X1["w"], "b": X1["b"]}
    result = bx.minimize(trivial, EXACT, optax.sgd(0.5), x1, key=key, T=4, every=2, metrics=lambda x: {"m": 1.0})
    result.save(tmp_path / "run")
    again = bx.Result.load(tmp_path / "run")
    for name in ("x", "x_hat", "x_mean"):
        jax.tree.map(np.testing.assert_array_equal, getattr(again, name), getattr(result, name))
    assert (again.history, again.cost, again.seconds) == (result.history, result.cost, result.seconds)
    assert again.manifest == result.manifest and again.manifest["T"] == 4
    assert set(again.manifest["versions"]) >= {"bilevelax", "jax", "optax"}
    with open(tmp_path / "run" / "history.csv", newline="") as file:
        assert [float(row["m"]) for row in csv.DictReader(file)] == [1.0, 1.0, 1.0]


def test_a_network_as_x(key, tmp_path):
    """equinox modules are pytrees; what is no array stays out of x."""
    params, static = eqx.partition(eqx.nn.MLP(2, 1, 4, 1, key=key), eqx.is_inexact_array)
    problem = bx.stochastic(
        lambda x, xi: jnp.sum((eqx.combine(x, static)(xi) - 1.0) ** 2), lambda key, data: random.normal(key, (2,))
    )
    result = bx.minimize(problem, bx.rt_mlmc(1), optax.sgd(0.05), params, key=key, T=100)
    assert float(jnp.abs(eqx.combine(result.x, static)(jnp.zeros(2)) - 1.0)[0]) < 0.3
    result.save(tmp_path)
    with pytest.raises(ValueError, match=r"`like` of Result.load must be given: x holds a MLP"):
        bx.Result.load(tmp_path)
    again = bx.Result.load(tmp_path, like=params)
    jax.tree.map(np.testing.assert_array_equal, again.x, result.x)


def test_non_finite_x_stops_with_the_last_finite_iterate(trivial, key):
    """x doubles each step from 1; in float64 2^t overflows at t = 1024."""
    double = bx.stateless(
        lambda key, problem, x: bx.Estimate(jax.tree.map(jnp.negative, x), bx.Cost(xi=1), {"level": 5})
    )
    with pytest.raises(
        bx.RunStopped, match=r"non-finite at t = 1024 \(level k = 5\)\. Usual causes: the outer step"
    ) as e:
        bx.minimize(trivial, double, optax.sgd(1.0), X1, key=key, T=3000, every=1000)
    result = e.value.result
    assert float(result.x["w"][0]) == 2.0**1023
    assert [row["t"] for row in result.history] == [0, 1000]


def test_bad_metrics_stop_with_the_run_so_far(trivial, key):
    metrics = lambda x: {"fine": 1.0, "odd": jnp.log(x["b"] - 0.2)}  # b: -1, 0.5, 1.25, ...
    with pytest.raises(bx.RunStopped, match=r"metric `odd` must be one finite number. Got .*nan.* at t = 0"):
        bx.minimize(trivial, EXACT, optax.sgd(0.5), X1, key=key, T=4, every=1, metrics=metrics)
    with pytest.raises(bx.RunStopped, match="metric `v` must be one finite number") as e:
        metrics = lambda x: {"v": jnp.ones(2) if x["b"] > 1 else 1.0}
        bx.minimize(trivial, EXACT, optax.sgd(0.5), X1, key=key, T=4, every=1, metrics=metrics)
    assert float(e.value.result.x["b"]) == 1.25 and len(e.value.result.history) == 2


def test_schedule_of_the_paper():
    schedule = bx.sqrt_then_linear(4, scale=2.0)
    found = [float(schedule(count)) for count in range(6)]
    np.testing.assert_allclose(found, [2 / np.sqrt(t) for t in (1, 2, 3, 4)] + [2 / 5, 2 / 6])


def test_progress_bar_writes_only_when_asked(trivial, key, capsys):
    bx.minimize(trivial, EXACT, optax.sgd(0.5), X1, key=key, T=4, every=2)
    assert capsys.readouterr().err == ""
    bx.minimize(trivial, EXACT, optax.sgd(0.5), X1, key=key, T=4, every=2, progress=True)
    assert "4/4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda problem, x, key: {}["none"], "`stop_when` of minimize failed at t = 2: KeyError: 'none'. The run so"),
        (
            lambda problem, x, key: (False, {"c": "text"}),
            "failed at t = 2: could not convert string to float",
        ),
    ],
)
def test_a_rule_that_fails_does_not_lose_the_run(trivial, key, rule, message):
    def stop_when(problem, x, key):
        return (False, {}) if x["b"] < 0 else rule(problem, x, key)

    with pytest.raises(bx.RunStopped, match=message) as e:
        bx.minimize(trivial, EXACT, optax.sgd(0.5), X1, key=key, T=6, every=2, stop_when=stop_when)
    assert float(e.value.result.x["b"]) == 1.25 and [row["t"] for row in e.value.result.history] == [0]


def test_a_rule_may_answer_with_arrays(trivial, key):
    """Its columns become numbers, its answer a truth."""
    rule = lambda problem, x, key: (x["b"] > 1, {"b": x["b"]})
    run = bx.minimize(trivial, EXACT, optax.sgd(0.5), X1, key=key, T=6, every=1, stop_when=rule)
    assert [row["b"] for row in run.history] == [-1.0, 0.5, 1.25]
    assert all(type(row["b"]) is float for row in run.history)
    json.dumps(run.history)


def test_a_diagnosis_that_fails_does_not_lose_the_run(quadratic, x, key):
    """At x1 all is well; after the first step grad f is not finite, and there is no certificate."""
    edge = x[0] + 0.5
    problem = dataclasses.replace(quadratic, f=lambda x, y, eta, xi: jnp.sum(y**2) + jnp.sqrt(edge - x[0]))
    step = bx.stateless(lambda key, problem, x: bx.Estimate(-jnp.ones(3), bx.Cost(), {}))
    with pytest.raises(
        bx.RunStopped, match=r"`stop_when` .* at t = 1: certify needs finite .* Got 32 of 32 batches"
    ) as e:
        bx.minimize(
            problem, step, optax.sgd(1.0), x, key=key, T=2, every=1, stop_when=bx.certified(1e-9, n=32), progress=False
        )
    np.testing.assert_array_equal(e.value.result.x, x + 1)
    assert "antithetic_mlmc(n0=64, levels=None)" in str(e.value) and "`estimator` of" not in str(e.value)


def test_a_run_that_never_steps_has_its_start_as_mean(trivial, key):
    run = bx.minimize(
        trivial, EXACT, optax.sgd(0.5), X1, key=key, T=6, every=2, stop_when=lambda problem, x, key: (True, {})
    )
    for found in (run.x, run.x_hat, run.x_mean):
        jax.tree.map(np.testing.assert_array_equal, found, X1)
