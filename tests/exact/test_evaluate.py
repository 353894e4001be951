"""`evaluate`: exact where everything is stored, without the bias of order 1/samples elsewhere."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.exact.evaluate import CONTEXTS, FEW_CONTEXTS, plan_of
from bilevelax.exact.sample_average import newton_cg

NOISE = 3.127  # of the treatment given the instrument: answers on 256 draws cost x^2 NOISE^2 / 512 = 0.0191 too much
X1 = jnp.ones(1)
F = 0.0569


def instruments():
    """Instrumental variables: y* = E[x t | z] = x z must predict (1 - d) z, so F(1) = d^2 / 2."""
    d = np.sqrt(2 * F)
    return bx.Problem(
        f=lambda x, y, eta, xi: (y[0] - (1 - d) * xi) ** 2 / 2,
        g=lambda x, y, eta, xi: (y[0] - x[0] * eta) ** 2 / 2,
        sample_context=lambda key, data: random.normal(key),
        sample_conditional=lambda key, xi, data: xi + NOISE * random.normal(key),
        init_y=lambda x, xi: jnp.zeros(1, x.dtype),
    )


def test_the_bias_of_few_draws_is_removed(key):
    problem = instruments()

    def cost(key):
        """What answers on 256 draws cost, as they are."""
        key_xi, key_y = random.split(key)
        xi = problem.context(key_xi)
        etas = problem.conditionals(key_y, xi, 256)
        y = newton_cg(problem.averaged(256), X1, xi, etas, jnp.zeros(1)).y
        return problem.f(X1, y, 0.0, xi)

    plain = np.asarray(jax.jit(jax.vmap(cost))(random.split(key, 4000)))
    assert 0.071 < plain.mean() < 0.081, "the bias that must be removed is not there"
    found = bx.evaluate(problem, X1, key=key, n=4000)
    assert abs(found.mean - F) < 4 * found.stderr and 4 * found.stderr < 0.5 * (0.076 - F), "wrong, or no power"
    assert found.low < F < found.high < plain.mean()


def test_stored_contexts_and_outcomes_are_added_up(logistic, key):
    x, problem = jnp.ones(4), logistic
    found = bx.evaluate(problem, x, key=key)
    assert found == bx.evaluate(problem, x, key=random.key(5)), "chance has a part in it"
    assert found.low == found.mean == found.high and found.stderr == 0 and found.n == 3
    by_hand = []
    for i in range(3):
        xi = problem.nth_context(i)
        etas, weights = problem.outcomes(xi)
        y = bx.respond(problem, x, xi, key=key)
        by_hand.append(sum(w * problem.f(x, y, eta, xi) for eta, w in zip(etas, weights, strict=True)))
    np.testing.assert_allclose(found.mean, np.mean(by_hand), rtol=1e-12)
    drawn = bx.evaluate(problem, x, key=key, n=2)  # negative control: fewer contexts than there are
    assert drawn.n == 2 and drawn.stderr > 0


def test_contexts_by_number_are_no_source_of_noise(key):
    """y* = x + xi with xi = 0 or 10: contexts that differ much, outcomes that are drawn."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: y[0] + eta,
        g=lambda x, y, eta, xi: (y[0] - x[0] - xi - eta) ** 2 / 2,
        sample_context=lambda key, data: data[0][random.randint(key, (), 0, 2)],
        sample_conditional=lambda key, xi, data: data[1] * random.normal(key),
        init_y=lambda x, xi: jnp.zeros(1, x.dtype),
        data=(jnp.asarray([0.0, 10.0]), jnp.asarray(1.0)),
        n_contexts=2,
        context_at=lambda i, data: data[0][i],
    )
    found = bx.evaluate(problem, X1, key=key, samples=4)
    assert found.n == CONTEXTS and abs(found.mean - 6) < 5 * found.stderr
    drawn = bx.evaluate(problem, X1, key=key, n=999, samples=4)
    assert 0 < found.stderr < 0.3 * drawn.stderr and abs(drawn.mean - 6) < 5 * drawn.stderr
    silent = problem.replace(data=(problem.data[0], jnp.asarray(0.0)))
    assert bx.evaluate(silent, X1, key=key, samples=4)[:4] == pytest.approx((6, 6, 6, 0))


@pytest.mark.parametrize(
    ("contexts", "stored", "n", "wanted"),
    [
        (None, False, None, (1000, 0, False)),
        (7, False, None, (1001, 143, False)),
        (3000, False, None, (6000, 2, False)),
        (FEW_CONTEXTS + 1, False, None, (1000, 0, False)),
        (7, False, 700, (700, 100, False)),
        (7, False, 701, (701, 0, False)),
        (7, True, None, (7, 1, True)),
        (7, True, 5, (5, 0, False)),
        (7, True, 8, (7, 1, True)),
        (20_000, True, None, (1000, 0, False)),
    ],
)
def test_which_contexts_are_looked_at(contexts, stored, n, wanted):
    numbered = {"n_contexts": contexts, "context_at": (lambda i, data: 0.0) if contexts else None}
    support = (lambda xi, data: (jnp.zeros(1), jnp.ones(1))) if stored else None
    assert plan_of(instruments().replace(support=support, **numbered), n) == wanted


def test_halves_that_tell_nothing_are_told(key):
    """Least squares with 6 unknowns: 8 draws have one minimum, 4 have many."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - x) ** 2),
        g=lambda x, y, eta, xi: (eta @ (y - x)) ** 2 / 2,
        sample_context=lambda key, data: jnp.zeros(()),
        sample_conditional=lambda key, xi, data: random.normal(key, (6,)),
        init_y=lambda x, xi: jnp.zeros(6),
    )
    with pytest.warns(UserWarning, match="leaves in F the bias of answers on 8 draws.* Raise `samples`"):
        assert abs(bx.evaluate(problem, jnp.ones(6), key=key, n=4, samples=8).mean) < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert abs(bx.evaluate(problem, jnp.ones(6), key=key, n=4, samples=32).mean) < 1e-12


def test_rare_contexts_are_told_of():
    """F = 1 / (2 p) by contexts of probability p that count 1 / p: most samples of 1,000 hold few of them, or none."""

    def rarely(p):
        return bx.Problem(
            f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2,
            g=lambda x, y, eta, xi: jnp.sum((y - x) ** 2) / 2,
            sample_context=lambda key, data: jnp.where(random.uniform(key) < data, 1 / data, 0.0)[None],
            sample_conditional=lambda key, xi, data: 0.0,
            init_y=lambda x, xi: jnp.zeros(1),
            data=jnp.asarray(p),
        )

    look = lambda p: bx.evaluate(rarely(p), jnp.zeros(1), key=random.key(2), samples=2)
    with pytest.warns(RuntimeWarning, match=r"few of 1000 contexts carry the noise, \d\.0 effective ones"):
        found = look(2e-3)
    assert found.stderr > 0, "none was met: the test has no power"
    assert abs(look(0.1).mean - 5) < 1  # silent: warnings are errors here
