"""Orders from a misspecified forecast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_gradients import answer, assert_matches_differences, exact, gradient
from jax import random

from bilevelax.applications import end_to_end
from bilevelax.testing import assert_mean, check_problem

TINY = dict(products=2, d=2, n=6, scenarios=5, test_points=50)


@pytest.fixture(scope="module")
def application():
    return end_to_end.make(**TINY)


def off(x):
    """Away from the maximum-likelihood start."""
    return {"W": x["W"] + 0.2, "c": x["c"] - 0.3, "log_s": x["log_s"] + 0.1}


def test_is_a_problem_with_its_constants(application):
    check_problem(application.problem, application.x1, key=random.key(0))
    assert (application.problem.mu_g, application.problem.L_g1) == (1.0, 1.0 + 10 * 5 / 4)


def test_hypergradient_against_differences(application):
    assert_matches_differences(exact(application.problem), off(application.x1))


def test_orders_minimise_the_forecast_cost_on_a_grid(application):
    """y* of each product against brute force in NumPy."""
    problem, x = application.problem, off(application.x1)
    found = jax.jit(lambda x: answer(exact(problem), x, problem.nth_context(1))[1])(x)
    mean = np.asarray(x["W"] @ problem.data.contexts[1] + x["c"])
    z = np.asarray(end_to_end.quantile(jnp.arange(5), 5))
    np.testing.assert_allclose(z, [-1.2815515655, -0.5244005127, 0.0, 0.5244005127, 1.2815515655], atol=1e-9)
    for j in range(2):
        y = mean[j] + np.linspace(-6, 6, 12_001)
        gap = y[:, None] - (mean[j] + np.exp(x["log_s"][j]) * z)
        cost = (np.logaddexp(0, 5 * gap) + 9 * np.logaddexp(0, -5 * gap)).mean(1) / 5 + (y - mean[j]) ** 2 / 2
        assert float(found[j]) == pytest.approx(y[np.argmin(cost)], abs=1e-3)


def test_draws_have_the_mean_of_all_scenarios(application):
    problem, x = application.problem, application.x1
    xi, y = problem.nth_context(2), jnp.array([9.0, 12.0])
    draw = jax.jit(jax.vmap(lambda key: problem.grad_g(x, y, problem.conditional(key, xi), xi)))
    everything = exact(problem)
    mean = everything.grad_g(x, y, everything.conditional(random.key(0), xi), xi)
    assert_mean(draw(random.split(random.key(1), 20_000)), mean, power=0.2)


def test_maximum_likelihood_is_stationary():
    """The gradient of the normal log-likelihood vanishes at the two-step forecast."""
    rng = np.random.default_rng(0)
    contexts, demands = end_to_end.truth(2, 3, rng).draw(rng, 40)
    x = end_to_end.maximum_likelihood(contexts, demands)

    def negative_log_likelihood(x):
        mean, spread = jax.vmap(lambda xi: end_to_end.forecast(x, xi))(jnp.asarray(contexts))
        return jnp.mean(jnp.log(spread) + ((jnp.asarray(demands) - mean) / spread) ** 2 / 2)

    for leaf in jax.tree.leaves(jax.jit(jax.grad(negative_log_likelihood))(x)):
        np.testing.assert_allclose(leaf, 0, atol=1e-9)


def test_oracle_orders_are_the_conditional_quantile():
    rng = np.random.default_rng(1)
    demand = end_to_end.truth(1, 2, rng)
    xi, came = demand.draw(rng, 200_000)
    assert_mean(came <= demand.best_order(xi, 0.9), [0.9], power=0.01)


def test_training_on_cost_beats_maximum_likelihood():
    """Exact gradients from the two-step forecast, judged on fresh demand; nobody beats the oracle."""
    application = end_to_end.make(n=600, scenarios=8, test_points=2000)
    problem = exact(application.problem)

    @jax.jit
    def train(x):
        descend = lambda x, _: (jax.tree.map(lambda a, v: a - 0.2 * v, x, gradient(problem, x)), None)
        return jax.lax.scan(descend, x, length=20)[0]

    first, last = application.metrics(application.x1), application.metrics(train(application.x1))
    assert first["true_cost"] == first["two_step_cost"] == last["two_step_cost"]
    assert last["oracle_cost"] < last["true_cost"] < 0.97 * last["two_step_cost"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(rho=0.0), "`rho` of end_to_end must be a positive number. Got 0.0"),
        (dict(n=3), "`n` of end_to_end must be an integer >= 4. Got 3"),
        (dict(scenarios=0), "`scenarios` of end_to_end must be an integer >= 1"),
        (dict(b=-1.0), "`b` of end_to_end must be a positive number"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        end_to_end.make(**{**TINY, **change})
