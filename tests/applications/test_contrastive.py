"""Temperatures of anchors against SciPy, the identity of the log-mean-exp, and the gradient by differences."""

import jax
import numpy as np
import pytest
from jax import random
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

import bilevelax as bx
from bilevelax.applications import contrastive as cl
from bilevelax.base.compiling import program

TAU0, RHO, RIDGE = 0.1, 0.5, 1e-3


@pytest.fixture(scope="module")
def app():
    return cl.make(rho=RHO, tau0=TAU0, ridge=RIDGE, width=3, dim=2, characters=8, drawings=3, d=2, negatives=16)


@pytest.fixture(scope="module")
def asked(app):
    """(problem on stored anchors, the excesses s of their negatives)."""
    problem = cl.stored(app.problem, cl.parts(TAU0, 2.0, RIDGE), random.key(3))
    anchors, negatives = problem.data.contexts, problem.data.outcomes[:, 0]
    each = jax.vmap(lambda xi, etas: jax.vmap(lambda eta: cl.excess(app.x1, eta, xi))(etas))
    return problem, np.asarray(jax.jit(each)(anchors, negatives))


def by_scipy(s, tau0=TAU0):
    """argmin over tau >= tau0 of tau log-mean-exp(s / tau) + rho tau + ridge tau^2 / 2."""
    cost = lambda tau: tau * (logsumexp(s / tau) - np.log(len(s))) + RHO * tau + RIDGE / 2 * tau**2
    return minimize_scalar(cost, bounds=(tau0, 2.0), method="bounded", options={"xatol": 1e-10}).x


def test_temperatures_are_those_of_scipy(app, asked):
    problem, s = asked
    found = cl.temperatures(problem, app.x1)
    wanted = np.array([by_scipy(each) for each in s])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    held = found <= TAU0 * (1 + 1e-6)
    assert 0 < held.sum() < len(held)  # the bound holds some and not others
    free = np.array([by_scipy(each, 1e-3) for each in s[held][:3]])
    assert (free < TAU0).all()  # control: without it these would be lower


def test_weights_of_negatives_are_rho_from_equal_ones(app, asked):
    """Where the bound does not hold: KL(softmax(s / tau) | equal) = rho, up to the ridge."""
    problem, s = asked
    tau = cl.temperatures(problem, app.x1)
    free = tau > TAU0 * (1 + 1e-6)
    for tau_i, s_i in zip(tau[free], s[free], strict=True):
        log_q = s_i / tau_i - logsumexp(s_i / tau_i)
        assert np.sum(np.exp(log_q) * (log_q + np.log(len(s_i)))) == pytest.approx(RHO + RIDGE * tau_i, abs=1e-5)


def test_the_gradient_is_that_of_the_log_mean_exp_at_these_temperatures(app, asked):
    """Danskin: differentiate with tau held, in x; the control forgets that tau was chosen."""
    problem, _ = asked
    batch = bx.minibatch(bx.saa("all"), cl.ASKED, contexts="spread")
    estimate = program()(lambda x: batch.estimate(random.key(0), problem, x, batch.init(problem, x))[0])
    found = estimate(app.x1).grad["out"]

    def mean(x, tau):
        g = lambda xi, etas, t: cl.shared(RIDGE).g(x, t, etas[0], xi)
        return jax.vmap(g)(problem.data.contexts, problem.data.outcomes, tau).mean()

    tau, slope = np.asarray(cl.temperatures(problem, app.x1)), jax.jit(jax.grad(mean))
    np.testing.assert_allclose(found, slope(app.x1, tau)["out"], atol=1e-6)
    assert np.abs(found - slope(app.x1, 0 * tau + 1.0)["out"]).max() > 1e-3


def test_equal_bounds_are_one_temperature(app):
    fixed = cl.make(tau0=0.3, tau_max=0.3, width=3, dim=2, characters=8, drawings=3, d=2)
    assert fixed.metrics(fixed.x1)["temperature"] == pytest.approx(0.3) and app.metrics(app.x1)["temperature"] != 0.3


def test_negatives_are_of_others_and_positives_of_the_same(app):
    data = app.problem.data
    for key in random.split(random.key(0), 8):
        xi = app.problem.context(key)
        own = np.asarray(data.rows[int(xi.character)])
        near = lambda a, rows=own: (np.abs(rows - np.asarray(a)).max(axis=1) < 1e-12).any()
        assert near(xi.view) and near(xi.positive) and not np.allclose(xi.view, xi.positive)
        assert not any(near(a) for a in app.problem.conditional(key, xi))


def test_refusals():
    with pytest.raises(ValueError, match=r"`tau_max` of contrastive must be at least tau0 = 0.3"):
        cl.make(tau0=0.3, tau_max=0.2)
    with pytest.raises(ValueError, match="`rho` of contrastive must be a positive number"):
        cl.make(rho=0.0)
