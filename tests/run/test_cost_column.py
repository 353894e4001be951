"""F and its error are columns of every history, from the steps' own samples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.problems.factor import with_cost
from bilevelax.run.records.history import cost_columns
from bilevelax.testing import assert_mean

STILL = optax.sgd(0.0)


def run(problem, estimator, x, T=4, **settings):
    return bx.minimize(problem, estimator, STILL, x, key=random.key(3), T=T, every=T, progress=False, **settings)


def test_the_full_batch_tells_f_exactly(logistic, key):
    x = jnp.ones(4)
    row = run(logistic, bx.minibatch(bx.saa("all"), 3, contexts="spread"), x).history[-1]
    assert row["F"] == pytest.approx(bx.evaluate(logistic, x, key=key).mean, rel=1e-6) and row["F_error"] < 1e-9
    assert "F" not in run(logistic, bx.saa("all"), x).history[0], "no step has been taken there"


EXACT = bx.dense()


@pytest.mark.parametrize(
    "estimator",
    [bx.rt_mlmc(3, inverse=EXACT), bx.dl_sgd(3, inverse=EXACT), bx.saa(4), bx.imaml(4), bx.maml(2), bx.envelope(2)],
    ids=["rt_mlmc", "dl_sgd", "saa", "imaml", "maml", "envelope"],
)
def test_the_gradient_is_the_same_to_the_bit(logistic, key, estimator):
    """The negative control of the column: asking for F changes nothing else."""
    x, state = jnp.ones(4), ()
    problem = logistic.replace(L_g1=4.0)
    plain = jax.jit(lambda key: estimator.estimate(key, problem, x, state)[0])(key)
    told = jax.jit(lambda key: with_cost(estimator).estimate(key, problem, x, state)[0])(key)
    jax.tree.map(np.testing.assert_array_equal, plain.grad, told.grad)
    jax.tree.map(np.testing.assert_array_equal, plain.cost, told.cost)
    assert set(told.aux) - set(plain.aux) == {"F"} and np.isfinite(told.aux["F"])


def test_multilevel_sums_have_the_bias_of_their_deepest_level():
    """y* = x xi on n draws of noise 1 costs F + x^2 / (2 n) where f = y^2 / 2: 4 draws at level 0, 16 at level 2."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: y[0] ** 2 / 2,
        g=lambda x, y, eta, xi: (y[0] - x[0] * eta) ** 2 / 2,
        sample_context=lambda key, data: jnp.ones(()),
        sample_conditional=lambda key, xi, data: xi + random.normal(key),
        init_y=lambda x, xi: jnp.zeros(1),
    )
    cost = lambda told: lambda key: told.estimate(key, problem, jnp.ones(1), ())[0].aux["F"]
    for estimator, n in ((bx.saa(4), 4), (bx.antithetic_mlmc(4, levels=2, correction_rate=0.5, factor=2), 16)):
        found = jax.jit(jax.vmap(cost(with_cost(estimator))))(random.split(random.key(1), 20_000))
        assert_mean(found[:, None], 0.5 + 0.5 / n, power=0.05)  # the other's mean is 0.094 away


def test_rt_mlmc_tells_f_of_dl_sgd(logistic, key):
    from bilevelax.core.double_loop import DoubleLoop
    from bilevelax.estimators.rt_mlmc import level_probabilities, levels_of

    x, problem = jnp.ones(4), logistic.replace(L_g1=4.0)
    levels, deep = levels_of(DoubleLoop(3, inverse=EXACT)), with_cost(bx.dl_sgd(3, inverse=EXACT))
    at = lambda k: with_cost(bx.stateless(lambda key, p, x: levels.at_level(k, key, p, x)))
    told = jax.jit(lambda key: [each.estimate(key, problem, x, ())[0].aux["F"] for each in (deep, *map(at, (1, 2, 3)))])
    whole, *parts = told(key)
    np.testing.assert_allclose(np.dot(level_probabilities(3), parts), whole, rtol=1e-10)


def test_estimators_that_remember_tell_it_too(logistic, key):
    x, problem = jnp.ones(4), logistic.replace(L_g1=4.0)
    exact = bx.evaluate(problem, x, key=key).mean
    warm = run(problem, bx.warm_started(bx.minibatch(bx.saa("all"), 3, contexts="spread")), x)
    assert warm.history[-1]["F"] == pytest.approx(exact, rel=1e-6)
    for estimator in (bx.bsvrb(blocks=3), bx.single_loop(table=True)):
        row = run(problem, estimator, x, T=300).history[-1]
        assert abs(row["F"] - exact) < 0.5 * abs(exact) and row["F_error"] > 0


def test_a_follower_in_a_set_whose_bounds_move(key):
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: jnp.sum((y - eta) ** 2) + x[0],
        g=lambda x, y, eta, xi: jnp.sum((y - eta) ** 2) / 2,
        contexts=jnp.arange(2.0),
        outcomes=jnp.asarray([[[0.0], [4.0]], [[1.0], [1.0]]]),
        init_y=lambda x, xi: jnp.zeros(1),
        constraint=bx.box(-jnp.inf, lambda x, xi: x),
    )
    row = run(problem, bx.minibatch(bx.saa("all"), 2, contexts="spread"), jnp.full(1, 0.5)).history[-1]
    assert row["F"] == pytest.approx(((0.25 + 12.25) / 2 + 0.25) / 2 + 0.5)


def test_estimators_of_others_are_asked_nothing(quadratic, x):
    mine = bx.stateless(lambda key, problem, x: bx.Estimate(2 * x, bx.Cost(), {}))
    assert "F" not in run(quadratic, mine, x).history[-1]


def test_a_metric_of_that_name_goes_first(logistic):
    rows = run(logistic, bx.saa("all"), jnp.ones(4), metrics=lambda x: {"F": 7.0}).history
    assert all(row["F"] == 7 and "F_error" not in row for row in rows)


def test_columns():
    assert cost_columns({"F": np.asarray([1.0, 3.0])}) == {"F": 2.0, "F_error": 1.0}
    assert cost_columns({"F": np.asarray([1.0])}) == {"F": 1.0}
    assert cost_columns({"F": np.asarray([1.0, np.nan])}) == cost_columns({}) == {}
