"""`certify` and `certified` on problems whose gradients are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from diagnosed import X, linear_estimator, pull
from jax import random

import bilevelax as bx
from bilevelax import testing as bx_testing
from bilevelax.diagnostics.intervals import squared_norm


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
    found = bx.certify(problem, jnp.array([1.0]), key=key, n=32)  # y* = x + 1 in both contexts
    assert found.estimate == pytest.approx(4.0) and found.low == found.estimate == found.high and found.n == 2
    assert str(found) == "|grad F|^2 = 4, exact: from 2 gradients without noise."


def test_stored_contexts_and_outcomes_leave_no_interval(logistic, key):
    x = jnp.ones(4)
    found = bx.certify(logistic, x, key=key)
    assert found == bx.certify(logistic, x, key=random.key(5)) and found.low == found.high and found.n == 3
    move = 1e-6 * jnp.eye(4)
    F = lambda x: bx.evaluate(logistic, x, key=key).mean
    slopes = [(F(x + e) - F(x - e)) / 2e-6 for e in move]
    np.testing.assert_allclose(found.estimate, np.sum(np.square(slopes)), rtol=1e-6)


def test_a_constraint_on_x_is_certified_by_the_projected_gradient(logistic, quadratic, matrices, x, key):
    low = jnp.asarray([1.0, 1.0, 1.0, 0.5])
    inside = lambda x: jnp.maximum(x, low)
    at = low + jnp.asarray([0.0, 0.01, 0.0, 0.0])
    slope = np.asarray([bx.saa("all").estimate(key, fixed, at, ())[0].grad for fixed in each_context(logistic)]).mean(0)
    found = bx.certify(logistic, at, key=key, constraint=inside)
    assert found.of == "|x - P(x - grad F)|^2" and found.low == found.high
    np.testing.assert_allclose(found.estimate, np.sum((at - inside(at - slope)) ** 2), rtol=1e-6)
    assert found.estimate < 0.9 * np.sum(slope**2), "the constraint does nothing here"
    # where gradients are noisy: an interval around the exact measure
    grad, x = matrices.grad_F(np.asarray(x)), np.asarray(x)
    low = jnp.asarray(np.where(grad == grad.max(), x, -np.inf))
    box = lambda x: jnp.maximum(x, low)
    noisy = bx.certify(quadratic, jnp.asarray(x), key=key, n=512, estimator=linear_estimator(matrices), constraint=box)
    exact = float(np.sum((x - np.asarray(box(jnp.asarray(x - grad)))) ** 2))
    assert noisy.low <= exact <= noisy.high and noisy.of == "|x - P(x - E v)|^2"
    assert noisy.high < np.sum(grad**2), "no power"


def each_context(problem):
    return [problem.replace(sample_context=lambda key, data, i=i: problem.context_at(i, data)) for i in range(3)]


def test_gradients_that_are_alike_are_not_called_exact_where_contexts_are_drawn():
    """grad F = x - 1: a context of probability p that counts 1 / p, among others that are all alike."""
    rare = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - x) ** 2) / 2,
        sample_context=lambda key, data: jnp.where(random.uniform(key) < data, 1 / data, 0.0)[None],
        sample_conditional=lambda key, xi, data: 0.0,
        init_y=lambda x, xi: jnp.zeros(1),
    )
    probabilities = map(jnp.asarray, (1e-3, 1e-9))
    looks = [bx.certify(rare.replace(data=p), jnp.full(1, 2.0), key=random.key(0), n=256) for p in probabilities]
    assert all(look.estimate == 4 for look in looks), "the rare context was met: the test has no power"
    # quick looks at more contexts met it: no interval
    assert looks[0].high == np.inf and "there is no interval" in str(looks[0])
    told = "|grad F|^2 = 4, the same in all 256 gradients drawn; what is rare and was not met is not in it."
    assert str(looks[1]) == told and looks[1].effective == 256


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


def test_certify_refuses_estimates_that_are_not_finite(quadratic, matrices, x, key):
    with pytest.raises(ValueError, match=r"certify needs finite gradients at x\. Got 32 of 32 .* Mend `estimator`"):
        bx.certify(quadratic, x, key=key, n=32, estimator=linear_estimator(matrices, noise=np.nan))


def test_a_second_certificate_compiles_nothing(key):
    traces = []

    def estimate(key, problem, x):
        traces.append(1)
        return bx.Estimate(x + random.normal(key, x.shape), bx.Cost(), {})

    estimator, problem = bx.stateless(estimate), pull()
    first, second = (bx.certify(problem, X, key=random.key(i), n=64, estimator=estimator) for i in range(2))
    assert len(traces) == 1 and first.estimate != second.estimate
