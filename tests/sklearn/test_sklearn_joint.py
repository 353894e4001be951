"""Conditionals estimated from pairs, whether they are calibrated, and forests as bases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from sklearn.ensemble import RandomForestRegressor

import bilevelax as bx
from bilevelax.sklearn import Forest, calibration, forest_leaves, with_conditional
from bilevelax.sklearn.joint import _leaves

X0 = jnp.asarray(0.7)


def pairs(n=300, seed=0, spread=lambda z: 0.3):
    rng = np.random.default_rng(seed)
    z = rng.uniform(-1, 1, (n, 2))
    eta = np.sign(z[:, 0]) + spread(z) * rng.normal(size=n)
    return bx.from_joint(
        f=lambda x, y, eta, xi: (y - xi[0]) ** 2,
        g=lambda x, y, eta, xi: (y - x * eta) ** 2 / 2,
        rows=(z, eta),
        init_y=lambda x, xi: jnp.zeros(()),
        mu_g=1.0,
        L_g1=1.0,
    )


@pytest.mark.parametrize("name", ["forest", "neighbours", "kernel"])
def test_answers_are_weighted_means(name, key):
    """y*(x; xi) = x E[eta | xi]: with weights on rows, an identity."""
    problem = with_conditional(pairs(), name, atoms=10_000)
    for i in (0, 7):
        etas, weights = problem.outcomes(problem.nth_context(i))
        assert float(weights.sum()) == pytest.approx(1.0)
        assert not np.isin(i, np.asarray(problem.data.rows[i])[np.asarray(weights) > 0])  # no vote for itself
        found = bx.respond(problem, X0, problem.nth_context(i), key=key)
        assert float(found) == pytest.approx(float(X0 * jnp.sum(weights * etas)), rel=1e-9)
        drawn = jax.vmap(lambda k, i=i: problem.conditional(k, problem.nth_context(i)))(random.split(key, 4000))
        error = float(jnp.std(drawn)) / 4000**0.5
        assert abs(float(drawn.mean() - jnp.sum(weights * etas))) < 5 * error < 0.1


def test_atoms_keep_the_heaviest(key):
    every, few = (with_conditional(pairs(), Forest(min_samples_leaf=20), atoms=n) for n in (10_000, 5))
    assert few.data.rows.shape == (300, 5)
    heaviest = np.sort(np.asarray(every.data.weights), axis=1)[:, -5:].sum(axis=1)
    np.testing.assert_allclose(np.asarray(few.data.weights).sum(axis=1), 1.0)
    index = np.asarray(few.data.rows)
    whole = np.zeros((300, 300))
    np.add.at(whole, (np.arange(300)[:, None], np.asarray(every.data.rows)), np.asarray(every.data.weights))
    np.testing.assert_allclose(np.take_along_axis(whole, index, axis=1).sum(axis=1), heaviest)


def test_calibration_tells_a_right_conditional_from_a_narrow_one():
    right = calibration(pairs(1000), Forest(min_samples_leaf=20))
    narrow = calibration(pairs(1000), Forest(min_samples_leaf=1, trees=1))
    for level, share, error in zip(right.levels, right.covered, right.stderr, strict=True):
        assert abs(share - level) < 5 * error < 0.2
    assert narrow.covered[-1] < 0.9 - 5 * narrow.stderr[-1]
    assert "covered" in str(right) and right.rows == 250


def test_leaves_are_those_of_the_forest():
    rng = np.random.default_rng(3)
    Z = rng.normal(size=(50, 3)).astype(np.float32).astype(float)  # as the forest sees them
    forest = RandomForestRegressor(4, max_leaf_nodes=6, random_state=0).fit(Z, Z[:, 0] * Z[:, 1])
    found = np.asarray(jax.vmap(_leaves([one.tree_ for one in forest.estimators_]))(jnp.asarray(Z)))
    assert (found.sum(axis=1) == 4).all()
    together = forest.apply(Z)
    same = (together[:, None] == together[None]).sum(axis=2)  # in how many trees two rows share a leaf
    np.testing.assert_array_equal(found @ found.T, same)


def test_leaves_find_a_jump_that_a_line_does_not():
    """E[eta | xi] jumps: answers written in leaves are nearer to it than those in polynomials of few terms."""
    problem = pairs(500)

    def error(basis):
        reduced = bx.reduced(problem, basis)
        W = bx.respond(reduced, X0, jnp.int32(0), key=random.key(0))
        z = np.random.default_rng(9).uniform(-1, 1, (200, 2))
        return float(np.mean((np.asarray(bx.answers(reduced, X0, W, z)) - 0.7 * np.sign(z[:, 0])) ** 2))

    assert error(forest_leaves(problem)) < 0.5 * error(bx.chebyshev(1))


def test_outcomes_may_be_classes(key):
    """Whole numbers that g indexes with: the forest's weights on rows know them, and answers are log shares."""
    rng = np.random.default_rng(4)
    z = rng.uniform(-1, 1, (200, 1))
    problem = bx.from_joint(
        f=lambda x, y, eta, xi: -y[eta],
        g=lambda x, y, eta, xi: jax.nn.logsumexp(y) - y[eta] + x * jnp.sum(y**2) / 2,
        rows=(z, (z[:, 0] > 0).astype(int) + (z[:, 0] > 0.5)),
        init_y=lambda x, xi: jnp.zeros(3),
    )
    fitted = with_conditional(problem, Forest(min_samples_leaf=5))
    low = int(np.argmin(z[:, 0]))
    assert int(jnp.argmax(bx.respond(fitted, jnp.asarray(0.01), fitted.nth_context(low), key=key))) == 0
    assert calibration(problem, Forest(min_samples_leaf=5)).rows == 50


def test_others_than_pairs_are_refused(key):
    joint = pairs()
    contextual = with_conditional(joint)
    for ask in (with_conditional, calibration, forest_leaves):
        with pytest.raises(ValueError, match="must come from from_joint"):
            ask(contextual)
    with pytest.raises(ValueError, match="`conditional` of with_conditional must be one of"):
        with_conditional(joint, "oracle")
