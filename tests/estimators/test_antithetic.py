"""antithetic_mlmc: levels that telescope, cancel to first order and cost what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications import quadratic as quadratic_application
from bilevelax.core.levels import draw_level
from bilevelax.estimators.antithetic_mlmc import Antithetic, Lane, difference, group_starts, level_probabilities
from bilevelax.exact.draws import in_memory
from bilevelax.exact.linear import direct
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_on
from bilevelax.testing import assert_mean, assert_slope, check_estimator

SETTINGS = {"n0": 2, "levels": 3, "correction_rate": 0.5, "factor": 2}


def many(keys, n):
    return jax.vmap(lambda i: random.fold_in(keys, i))(jnp.arange(n))


def levels_of(**settings):
    return bx.antithetic_mlmc(**{**SETTINGS, **settings}).levels


def deltas(levels, deepest, key, problem, x):
    """Delta_1 .. Delta_deepest: what the estimate at level l adds to that at level 0, times p_l."""
    grads = jax.vmap(lambda k: levels.at_level(k, key, problem, x).grad)(jnp.arange(deepest + 1, dtype=jnp.int32))
    p = jnp.asarray(levels.probabilities[1 : deepest + 1])
    return jax.tree.map(lambda a: p.reshape(-1, *[1] * (a.ndim - 1)) * (a[1:] - a[:1]), grads)


@pytest.mark.parametrize("factor", [2, 3])
def test_levels_telescope_to_the_top_exactly(quadratic, x, key, factor):
    """At fixed draws: mean Phi_0 + mean Delta_1 + mean Delta_2 over all groups of samples is Phi_2 of all samples."""
    problem, n0, top = quadratic, 2, 2
    xi = problem.context(key)
    etas = problem.conditionals(key, xi, n0 * factor**top)
    y = problem.start(x, xi)
    settings = Antithetic(n0, top, True, False, "same", newton_solver(tol=1e-13), direct(), (), factor)

    def phi(etas):
        n = len(etas)
        average = of_stack(problem, x, xi, etas, jnp.full(n, 1 / n), n)
        return respond_on(average, y, settings.solver, settings.linear).grad

    def delta(level, etas):
        lane = Lane(None, None, xi, y, None)
        return difference(level, level, lane, (in_memory(etas), in_memory(etas)), problem, x, settings)[0]

    @jax.jit
    def terms(etas):
        groups = [etas.reshape(-1, n, *etas.shape[1:]) for n in settings.sizes]
        return [jax.vmap(phi)(groups[0])] + [jax.vmap(lambda e, k=k: delta(k, e))(groups[k]) for k in range(1, top + 1)]

    found = terms(etas)
    np.testing.assert_allclose(sum(jnp.mean(a, axis=0) for a in found), jax.jit(phi)(etas), atol=1e-12)
    assert float(jnp.abs(found[1]).max()) > 1e-3  # the identity is not 0 = 0


@pytest.fixture(scope="module")
def constant_hessians():
    return quadratic_application.problem_of(quadratic_application.matrices(d_x=3, d_y=4, d_xi=2, hessian_noise=0.0))


@pytest.mark.parametrize("f_samples", ["same", "fresh"])
def test_constant_hessians_leave_no_difference(constant_hessians, x, key, f_samples):
    """Then Phi is linear in the samples, those of f included: every Delta_l is zero up to rounding."""
    levels = levels_of(f_samples=f_samples)
    found = jax.jit(lambda: deltas(levels, 3, key, constant_hessians, x))()
    np.testing.assert_allclose(found, 0, atol=1e-12)


def test_differences_fall_by_four_per_level(quadratic, x, key):
    """E|Delta_l|^2 = O(2^-2l); those of equal draws are equal whether kept in memory or drawn again without end."""
    stored, endless = (
        bx.antithetic_mlmc(n0=8, levels=levels, correction_rate=0.1, factor=2).levels for levels in (5, None)
    )
    run = jax.jit(lambda key: deltas(stored, 5, key, quadratic, x))
    keys = many(key, 200)
    found = jnp.stack([run(key) for key in keys])
    squares = np.mean(np.sum(found**2, axis=2), axis=0)
    assert squares[-1] > 1e-12  # far above rounding
    assert_slope(np.arange(1, 6), squares, -2.0, tol=0.3)

    redrawn = jax.jit(lambda key: deltas(endless, 5, key, quadratic, x))(keys[0])
    np.testing.assert_allclose(redrawn, found[0], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2, 4])
def test_lanes_that_climb_together_are_those_that_climb_alone(quadratic, x, key, factor):
    """Groups of like and of unlike levels: the same estimates, counts and levels."""
    levels = levels_of(f_samples="fresh", factor=factor)
    ks, keys = jnp.asarray([2, 1, 1, 0, 3, 0], jnp.int32), many(key, 6)
    together = jax.jit(lambda: levels.at_levels(ks, keys, quadratic, x))()
    one = jax.jit(lambda k, key: levels.at_level(k, key, quadratic, x))
    for i, k in enumerate(ks.tolist()):
        alone = one(k, keys[i])
        np.testing.assert_allclose(together.grad[i], alone.grad, rtol=1e-8)
        assert int(together.aux["level"][i]) == k
        assert jax.tree.map(lambda a, i=i: int(a[i]), together.cost) == jax.tree.map(int, alone.cost)


@pytest.mark.parametrize("factor", [2, 3])
def test_cost_is_exact(quadratic, x, key, factor):
    """On a quadratic Newton takes one step, and a second system tells that it arrived: two gradients, 2 d_y products.

    The adjoint uses that system again; one more product tells y's size in energy, and one what the adjoint leaves.
    """
    d_y, n0 = 4, 2
    run = jax.jit(lambda k: levels_of(factor=factor).at_level(k, key, quadratic, x).cost)
    for k in range(4):
        solved = n0 + (2 * n0 * factor**k if k else 0)  # Phi_0, then all samples once finely and once coarsely
        drawn = n0 + (n0 * factor**k if k else 0)
        wanted = bx.Cost(1, drawn, solved, 2 * solved, (2 * d_y + 2) * solved, solved)
        assert jax.tree.map(int, run(jnp.int32(k))) == wanted


@pytest.mark.slow
def test_contract(softmax, key):
    """x, y, xi and eta are pytrees here, and eta is a pair (train, test)."""
    problem, x = softmax
    check_estimator(bx.antithetic_mlmc(**SETTINGS), problem, x, key=key)


def test_single_precision(softmax, key):
    problem, x = jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.float64 else a, softmax)
    est = jax.jit(lambda: levels_of().at_level(1, key, problem, x))()
    assert est.grad[0].dtype == jnp.float32 and bool(jnp.all(jnp.isfinite(est.grad[0])))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "factor"), [("stratified", 2), ("loop", 2), ("stratified", 8)])
def test_mean_is_the_gradient(matrices, quadratic, x, key, mode, factor):
    """Without truncation the mean is grad F itself, however a minibatch spreads the levels."""
    estimator = bx.minibatch(bx.antithetic_mlmc(n0=4, levels=None, correction_rate=0.5, factor=factor), 32, mode)
    run = jax.jit(lambda key: estimator.estimate(key, quadratic, x, ())[0].grad)
    assert_mean([run(k) for k in many(key, 300)], matrices.grad_F(np.asarray(x)), power=0.3)


def test_probabilities_and_draws(key):
    p = level_probabilities(4, 0.3, 1.5)
    assert p[0] == pytest.approx(0.7) and sum(p) == pytest.approx(1)
    np.testing.assert_allclose(np.asarray(p[2:]) / p[1:-1], 2**-1.5)
    drawn = jax.jit(jax.vmap(lambda key: draw_level(key, p)))(many(key, 20_000))
    expected = 20_000 * np.asarray(p)
    chi_square = np.sum((np.bincount(drawn, minlength=5) - expected) ** 2 / expected)
    assert chi_square < 23.5  # 0.9999 quantile with 4 degrees of freedom


def test_levels_without_end_are_drawn_coin_by_coin(key):
    """Level 1 has 1 - r of the rest, whatever comes far behind: P(level >= 2) is what is left."""
    p = level_probabilities(27, 0.3, 1.5)
    assert p[-1] < 2**-24  # beyond one uniform number in single precision
    drawn = jax.jit(jax.vmap(lambda key: draw_level(key, p)))(many(key, 20_000))
    expected = 20_000 * np.asarray([*p[:4], sum(p[4:])])
    found = np.bincount(np.minimum(drawn, 4), minlength=5)
    assert np.sum((found - expected) ** 2 / expected) < 23.5


@pytest.fixture(scope="module")
def few_outcomes():
    """Contexts with 8, 6 and 5 outcomes of unequal effect."""
    rng = np.random.default_rng(3)
    outcomes = [np.exp(rng.normal(size=(n, 2))) for n in (8, 6, 5)]
    g = lambda x, y, eta, xi: jnp.sum(eta * y**2) / 2 + jnp.sum(y**2) / 4 - y @ (x + xi * eta)
    f = lambda x, y, eta, xi: jnp.sum((y - eta) ** 2) / 2 + jnp.sum(jnp.sin(y))
    return bx.from_arrays(f, g, np.asarray([0.5, 1.0, 2.0]), outcomes, init_y=lambda x, xi: jnp.zeros(2))


@pytest.mark.slow
def test_exact_top_has_the_exact_mean(few_outcomes, key):
    """n0 2^2 = 8 outcomes: the mean over draws without replacement is the gradient of F, not that of a sample."""
    x = jnp.asarray([1.0, -0.5])
    exact = jax.jit(jax.vmap(lambda key: bx.saa("all").estimate(key, few_outcomes, x, ())[0].grad))
    rows = jax.vmap(lambda key: few_outcomes.context(random.split(key)[0]).row)
    keys = many(key, 64)
    grads, seen = exact(keys), np.asarray(rows(keys))
    gradient = np.mean([grads[seen == i][0] for i in range(3)], 0)

    estimator = bx.minibatch(bx.antithetic_mlmc(2, 2, correction_rate=0.6, exact_top=True, factor=2), 64)
    run = jax.jit(lambda key: estimator.estimate(key, few_outcomes, x, ())[0].grad)
    assert_mean([run(k) for k in many(key, 500)], gradient, power=0.05)

    biased = bx.minibatch(bx.saa(2), 64)
    run = jax.jit(lambda key: biased.estimate(key, few_outcomes, x, ())[0].grad)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean([run(k) for k in many(key, 500)], gradient, power=0.05)


def test_exact_top_takes_every_outcome_once(few_outcomes, key):
    levels = bx.antithetic_mlmc(2, 2, exact_top=True, factor=2).levels
    x = jnp.asarray([1.0, -0.5])
    cost = jax.jit(lambda key: levels.at_level(2, key, few_outcomes, x).cost)
    for k in many(key, 4):
        row = int(few_outcomes.context(random.split(k, 4)[0]).row)
        assert int(cost(k).eta) == 2 + (8, 6, 5)[row]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n0": 0}, "`n0` of antithetic_mlmc must be an integer >= 1. Got 0"),
        ({"levels": 0}, "`levels` of antithetic_mlmc must be an integer >= 1. Got 0"),
        ({"levels": 28}, r"`levels` of antithetic_mlmc must keep n0 \* 2\*\*28 within 2\*\*30. Got 28"),
        (
            {"levels": None, "n0": 2**30},
            r"`n0` of antithetic_mlmc must keep n0 \* 2\*\*1 within 2\*\*30. Got 1073741824",
        ),
        ({"correction_rate": None}, r"`correction_rate` of antithetic_mlmc must lie in \(0, 1\]. Got None"),
        ({"exponent": None}, "`exponent` of antithetic_mlmc must be a positive number. Got None"),
        ({"correction_rate": 0.0}, r"`correction_rate` of antithetic_mlmc must lie in \(0, 1\]. Got 0.0"),
        ({"exponent": -1.0}, "`exponent` of antithetic_mlmc must be a positive number. Got -1.0"),
        ({"levels": None, "exponent": 2.5}, "between 1 and 2 where levels=None.*Got 2.5"),
        ({"levels": None, "exact_top": True}, "`exact_top` of antithetic_mlmc needs a deepest level"),
        ({"f_samples": "both"}, "`f_samples` of antithetic_mlmc must be one of 'same', 'fresh'. Got 'both'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        bx.antithetic_mlmc(**{"n0": 8, "factor": 2, **settings})


def test_exact_top_needs_a_finite_set(quadratic, x, key):
    with pytest.raises(ValueError, match="no finite set of outcomes"):
        bx.antithetic_mlmc(exact_top=True).estimate(key, quadratic, x, ())


def test_groups_are_halvings_at_once(quadratic, x, key):
    """With factor 4, the variance of Delta_1 is that of a second halving plus half of a first one's: 3/4 V_1."""
    one, four = levels_of(n0=8, levels=1), levels_of(n0=8, levels=1, factor=4)
    run = jax.jit(jax.vmap(lambda key: [deltas(levels, 1, key, quadratic, x)[0] for levels in (one, four)]))
    found = map(np.asarray, run(many(key, 2000)))
    halves, quarters = (np.sum((a - a.mean(0)) ** 2, axis=1) for a in found)
    error = np.hypot(0.75 * halves.std(), quarters.std()) / np.sqrt(2000)
    assert abs(quarters.mean() - 0.75 * halves.mean()) < 5 * error < 0.25 * halves.mean()


@pytest.mark.parametrize(("size", "part", "factor"), [(2**30, 2**15, 2**15), (24, 8, 3), (7, 3, 4), (5, 5, 2)])
def test_groups_start_where_they_should(size, part, factor):
    """In 32 bits, whatever the number of samples; the last one ends where they do."""
    wanted = [(size - part) * i // (factor - 1) for i in range(factor)]
    assert group_starts(jnp.int32(size), jnp.int32(part), factor).tolist() == wanted
    assert wanted[-1] + part == size


def test_sizes_of_numpy_are_sizes(quadratic, x, key):
    grads = [
        jax.jit(bx.antithetic_mlmc(n0, levels, factor=factor).levels.at_level)(jnp.int32(0), key, quadratic, x).grad
        for n0, levels, factor in ((8, None, 2), (np.int64(8), None, np.int32(2)))
    ]
    np.testing.assert_array_equal(*grads)


@pytest.mark.parametrize(("d", "n0"), [(3, 32), (65, 64)])
def test_samples_of_level_0_follow_the_size_of_y(d, n0, key):
    """As it comes it is the one with that n0, rare corrections by groups of 8; the level is drawn alike."""
    problem = bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum((y - eta) ** 2),
        g=lambda x, y, eta, xi: jnp.sum((1 + eta**2) * (y - x) ** 2) + jnp.sum(y * eta),
        sample_context=lambda key, data: random.uniform(key),
        sample_conditional=lambda key, xi, data: xi + random.normal(key, (d,)),
        init_y=lambda x, xi: jnp.zeros(d),
    )
    x = jnp.ones(d)
    settings = {"levels": 2, "correction_rate": 0.006, "factor": 8}
    plain, told = (
        jax.jit(lambda key, e=e: e.estimate(key, problem, x, ())[0])(key)
        for e in (bx.antithetic_mlmc(), bx.antithetic_mlmc(n0, **settings))
    )
    assert int(plain.cost.eta) == n0 and int(plain.aux["level"]) == 0
    jax.tree.map(np.testing.assert_array_equal, plain, told)
