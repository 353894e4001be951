"""Every estimator on every application, found by discovery; and broken ones that must be refused."""

import jax
import jax.numpy as jnp
import pytest
from jax import random

import bilevelax as bx
from bilevelax import applications, estimators
from bilevelax.testing import assert_mean, assert_slope, check_estimator, check_problem


@pytest.mark.parametrize("name", applications.catalogue.names())
def test_applications_keep_their_contract(name, key):
    app = applications.catalogue.load(name)()
    check_problem(app.problem, app.x1, key=key, draws=2)
    assert all(isinstance(v, float) for v in app.metrics(app.x1).values())
    assert applications.catalogue.summary(name)


@pytest.mark.parametrize("name", estimators.catalogue.names())
def test_estimators_keep_their_contract(name, key, finite):
    check_estimator(estimators.catalogue.load(name)(), *finite, key=key)
    assert estimators.catalogue.summary(name)


@pytest.fixture(scope="module")
def finite():
    """Four contexts with three outcomes each: every estimator can work on it."""
    contexts = random.normal(random.key(1), (4, 2))
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: jnp.sum((y["u"] - eta) ** 2) / 2 + jnp.sum(x["a"] ** 2),
        g=lambda x, y, eta, xi: jnp.sum(jnp.cosh(y["u"] - x["b"] * xi - eta)) + jnp.sum((y["u"] - x["a"]) ** 2),
        contexts=contexts,
        outcomes=0.3 * random.normal(random.key(2), (4, 3, 2)),
        init_y=lambda x, xi: {"u": xi},
        mu_g=3.0,
        L_g1=20.0,
    )
    return problem, {"a": jnp.array([0.1, -0.2]), "b": jnp.asarray(0.3)}


def make(grad, cost=None, init=lambda problem, x: (), after=lambda state: state):
    cost = bx.Cost(xi=1) if cost is None else cost
    return bx.Estimator(
        init=init,
        estimate=lambda key, problem, x, state: (bx.Estimate(grad(key, problem, x), cost, {}), after(state)),
    )


def value_dependent(key, problem, x):
    value_dependent.calls = getattr(value_dependent, "calls", 0) + 1
    return x if value_dependent.calls % 2 else x + 1.0


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (make(lambda key, problem, x: {"grad": x}), "the gradient must look like x"),
        (make(lambda key, problem, x: x[:2]), "the gradient must look like x"),
        (make(lambda key, problem, x: x.astype(jnp.float32)), "the gradient must look like x"),
        (make(lambda key, problem, x: x / 0.0), "the gradient is not finite"),
        (make(lambda key, problem, x: x, cost=bx.Cost(xi=0.5)), "cost xi is no count"),
        (make(lambda key, problem, x: x, cost=(1, 2)), "the cost must be a Cost"),
        (
            make(lambda key, problem, x: x, init=lambda p, x: jnp.zeros(2), after=lambda s: s[:1]),
            "the state must keep its structure",
        ),
        (make(value_dependent), "vmap over keys changed the estimates"),
    ],
)
def test_broken_estimators_are_refused(broken, message, quadratic, x, key):
    with pytest.raises(AssertionError, match=message):
        check_estimator(broken, quadratic, x, key=key)


def test_assert_mean_can_fail(key):
    samples = random.normal(key, (1000, 2))
    assert_mean(samples, [0.0, 0.0], power=0.2)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(samples, [0.0, 0.3], power=0.2)
    with pytest.raises(AssertionError, match="no power: 5 standard errors are"):
        assert_mean(samples, [0.0, 0.0], power=0.01)


def test_assert_slope_can_fail():
    x = [1, 2, 3, 4]
    assert assert_slope(x, [2.0**-k for k in x], -1, tol=1e-9) == pytest.approx(-1)
    with pytest.raises(AssertionError, match=r"the slope is -1.0000, not -2"):
        assert_slope(x, [2.0**-k for k in x], -2, tol=0.1)
    with pytest.raises(AssertionError, match="at least 3 points"):
        assert_slope([1, 2], [1, 2], 1, tol=0.1)


def test_estimators_are_jit_arguments_by_identity(quadratic, x):
    """An estimator is hashable, so `minimize` can cache what it compiled for it."""
    assert hash(bx.rt_mlmc(3)) != hash(bx.rt_mlmc(3))
    jax.jit(lambda x, estimator: x, static_argnames="estimator")(x, estimator=bx.minibatch(bx.rt_mlmc(3), 4))
