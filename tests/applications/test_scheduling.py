"""Schedules with ramps, on few synthetic days."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
from exact_gradients import differences
from jax import random
from jax.flatten_util import ravel_pytree

import bilevelax as bx
from bilevelax.applications import scheduling
from bilevelax.applications.scheduling import Costs
from bilevelax.base.compiling import program
from bilevelax.exact.respond import every_answer

COSTS = Costs(50.0, 0.5, 0.15)
TINY = dict(data="synthetic", days=20, hours=5, width=2, ramp=0.15)


@pytest.fixture(scope="module")
def application():
    return scheduling.make(**TINY)


def test_expected_cost_is_the_integral_of_what_is_paid():
    density = scipy.stats.norm(1.2, 0.3)
    for y in (0.7, 1.2, 1.9):
        integrand = lambda e, y=y: float(COSTS.paid(jnp.asarray(y), jnp.asarray(e))) * density.pdf(e)
        wanted = scipy.integrate.quad(integrand, -1.5, 4.0, points=[y], epsabs=1e-10)[0]
        assert float(COSTS.expected(jnp.asarray(y), jnp.asarray(1.2), jnp.asarray(0.3))) == pytest.approx(wanted)


def test_curvature_is_within_its_constants():
    y, spread = jnp.linspace(-1.0, 1.0, 401), jnp.full(401, 0.2)
    curvature = jax.vmap(jax.grad(jax.grad(COSTS.expected)), (0, None, 0))(y, jnp.zeros(()), spread)
    assert float(curvature.min()) >= 1 and float(curvature.max()) == pytest.approx(COSTS.steepest(0.2))


def test_schedules_are_those_of_scipy(application):
    """Interior points and faces against sequential quadratic programming."""
    problem, x = application.problem, application.x1
    ys = np.asarray(program()(every_answer)(problem, x))
    spread, steps = np.asarray(scheduling.spread_of(x)), np.diff(np.eye(5), axis=0)
    ramps = scipy.optimize.LinearConstraint(steps, -COSTS.ramp, COSTS.ramp)
    assert (np.abs(ys @ steps.T) > COSTS.ramp - 1e-9).any() and np.abs(ys @ steps.T).max() < COSTS.ramp + 1e-9
    for i in range(3):
        mean = np.asarray(x["network"](problem.data.contexts[i]))

        def cost(y, mean=mean):
            u = (y - mean) / spread
            above = (y - mean) * scipy.stats.norm.cdf(u) + spread * scipy.stats.norm.pdf(u)
            return np.sum(50.0 * (mean - y) + 50.5 * above + ((y - mean) ** 2 + spread**2) / 2)

        found = scipy.optimize.minimize(
            cost, np.full(5, mean.mean()), method="SLSQP", constraints=[ramps], tol=1e-13, options={"maxiter": 500}
        )
        np.testing.assert_allclose(ys[i], found.x, atol=1e-4)
        assert cost(ys[i]) <= found.fun + 1e-9


def test_gradient_is_that_of_differences(application):
    """Through the network, the spread, and the ramps that hold."""
    problem = application.problem
    batch = bx.minibatch(bx.saa("all"), problem.n_contexts, contexts="spread")
    take = program()(lambda x: batch.estimate(random.key(0), problem, x, ())[0].grad)
    found, wanted = (
        ravel_pytree(a)[0] for a in (take(application.x1), program()(differences)(problem, application.x1))
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5 * float(jnp.linalg.norm(wanted)))


def test_training_on_cost_lowers_it(application):
    """From least squares, on the days that it is trained on."""
    problem, x1 = application.problem, application.x1
    batch = bx.minibatch(bx.saa("all"), problem.n_contexts, contexts="spread")
    paid = lambda x: {"cost": float(scheduling.judged(problem, x, COSTS)["cost"])}
    run = bx.minimize(problem, batch, optax.sgd(1e-3), x1, key=random.key(0), T=40, metrics=paid)
    assert run.history[-1]["cost"] < 0.9 * run.history[0]["cost"]


def test_features_are_scaled_by_the_training_days():
    train, test = scheduling.standardised(scheduling.synthetic(50, 3, 0))
    assert len(train.y) == 40 and len(test.y) == 10
    np.testing.assert_allclose(train.X.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(train.X.std(0), 1)
    assert np.abs(test.X.mean(0)).max() > 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(data="texas"), "`data` of scheduling must be one of 'auto', 'pjm', 'synthetic'. Got 'texas'"),
        (dict(ramp=0.0), "`ramp` of scheduling must be a positive number. Got 0.0"),
        (dict(hours=1), "`hours` of scheduling must be an integer >= 2. Got 1"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        scheduling.make(**{**TINY, **change})
