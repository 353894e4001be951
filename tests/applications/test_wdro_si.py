"""The newsvendor with side information: WDRO-SI, WDRO, ERM."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact_gradients import answer, assert_matches_differences, exact, objective
from jax import random
from jax.flatten_util import ravel_pytree

import bilevelax as bx
from bilevelax import applications
from bilevelax.applications import wdro_si
from bilevelax.applications.newsvendor import loss as newsvendor
from bilevelax.core.inverse import none
from bilevelax.exact.inverse import dense
from bilevelax.testing import assert_mean, assert_slope, check_problem

TINY = dict(M=2, m=3, d=2, scale=2.0, widths=(3,), lam=10.0, test_points=20_000)
GIVEN = dict(mu_g=1.0, L_g1=30.0)  # where the constants are not the point


@pytest.fixture(scope="module")
def mlp():
    return wdro_si.make(**TINY, **GIVEN)


@pytest.fixture(scope="module")
def affine():
    return wdro_si.make(**TINY, **GIVEN, rule="affine")


def near_demand(x):
    """Orders of the size of demand, where the loss bends."""
    flat, unravel = ravel_pytree(x)
    return eqx.tree_at(lambda x: x.layers[-1].bias, unravel(flat), jnp.array([5.0]))


@pytest.mark.parametrize("change", [{}, {"rule": "affine", "danskin": False}, {"activation": "tanh"}])
def test_is_a_problem_with_constants_around_two_lam(change):
    problem, x1, _ = wdro_si.make(**{**TINY, **change})
    check_problem(problem, x1, key=random.key(0))
    assert problem.mu_g < 2 * TINY["lam"] <= problem.L_g1
    assert (problem.inverse is None) == ("danskin" in change)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x1))


def test_the_folder_that_it_is_made_of_is_no_application():
    assert "wdro_si" in applications.catalogue.names() and "newsvendor" not in applications.catalogue.names()


def test_given_constants_are_kept(mlp):
    assert (mlp.problem.mu_g, mlp.problem.L_g1) == (1.0, 30.0)


@pytest.mark.parametrize("inverse", [none(), dense(1)], ids=["danskin", "full"])
def test_hypergradient_against_differences(inverse, mlp):
    assert_matches_differences(exact(mlp.problem), near_demand(mlp.x1), inverse=inverse)


def test_bias_is_of_order_one_by_danskin_and_two_with_the_implicit_term(mlp):
    problem, x = exact(mlp.problem), near_demand(mlp.x1)
    xi, powers = problem.nth_context(0), jnp.arange(-9, -4)

    @jax.jit
    def errors(x):
        y = answer(problem, x, xi)[1]
        v = lambda y, inverse: ravel_pytree(bx.hypergradient(random.key(0), problem, x, y, xi, inverse)[0])[0]
        at = lambda k: y + jnp.exp2(k.astype(float)) * jnp.array([0.6, -0.8])
        off = lambda k, inverse: jnp.linalg.norm(v(at(k), inverse) - v(y, none()))
        return [jax.vmap(lambda k, inverse=inverse: off(k, inverse))(powers) for inverse in (none(), dense(1))]

    by_danskin, full = errors(x)
    assert_slope(powers, by_danskin, 1, tol=0.1)
    assert_slope(powers, full, 2, tol=0.1)


@pytest.mark.parametrize("m", [3, 1])
def test_an_adversary_who_sees_the_demand_does_more_harm(m):
    """ERM <= WDRO-SI <= WDRO at random x; the last two agree where each context has one demand."""
    settings = {**TINY, "m": m, "lam": 2.0, "rule": "affine", **GIVEN}
    made = [wdro_si.make(**settings, formulation=name) for name in ("erm", "wdro_si", "wdro")]
    erm, si, wdro = (application.problem for application in made)

    @jax.jit
    @jax.vmap
    def values(weight, bias):
        x = eqx.tree_at(lambda x: (x.layers[0].weight, x.layers[0].bias), made[0].x1, (weight, bias))
        return jnp.stack([objective(problem, x) for problem in (erm, exact(si), exact(wdro))])

    key_w, key_b = random.split(random.key(1))  # 5 |w|^2 < 2 lam: convex even for the adversary who sees the demand
    low, middle, high = values(0.25 * random.normal(key_w, (20, 1, 2)), 5 + random.normal(key_b, (20, 1))).T
    assert jnp.all(middle >= low - 1e-10) and jnp.mean(middle - low) > 1e-3
    if m == 1:
        np.testing.assert_allclose(middle, high, rtol=1e-10)
    else:
        assert jnp.all(high >= middle - 1e-10) and jnp.mean(high - middle) > 1e-3


def test_oracle_cost_against_monte_carlo(key):
    h, b, sigma = 1.0, 3.0, 2.0
    demand = 5 + sigma * random.normal(key, (400_000,))
    order = 5 + sigma * jax.scipy.stats.norm.ppf(b / (h + b))
    assert_mean(newsvendor.loss(order, demand, h, b), newsvendor.oracle_cost(h, b, sigma), power=0.02)


def test_smoothing_adds_at_most_log_two():
    w = jnp.linspace(-2.5, 3.5, 121)
    gap = newsvendor.smooth_loss(w, 0.5, 1.0, 3.0, 5.0) - newsvendor.loss(w, 0.5, 1.0, 3.0)
    assert jnp.all(gap >= -1e-12) and float(gap.max()) == pytest.approx(4 * np.log(2) / 5)


def test_metrics_of_a_constant_order(affine, key):
    x = jax.tree.map(jnp.zeros_like, affine.x1)
    x = eqx.tree_at(lambda x: x.layers[0].bias, x, jnp.array([4.0]))
    row = affine.metrics(x)
    eta = np.asarray(affine.problem.data.outcomes)
    cost = lambda eta: np.maximum(4 - eta, 0) + 3 * np.maximum(eta - 4, 0)
    assert row["train_cost"] == pytest.approx(cost(eta).mean(), rel=1e-12)
    assert row["oracle_cost"] == pytest.approx(1.2711062907364278)
    market = wdro_si.market_of(random.fold_in(random.key(0), 0), 2, 2.0, 1.0, 3.0, "test")
    xi = market.contexts(key, 100_000)
    assert_mean(cost(np.asarray(market.demands(key, xi, 1)[:, 0])), row["test_cost"], z=7.0, power=0.1)
    assert row["min_curvature"] == pytest.approx(2 * TINY["lam"])  # a constant order cannot be moved


def bending(x, xi, etas):
    """Mean second derivative of l_beta in the order, by hand; times |w|^2 it is the loss's one eigenvalue."""
    w, c = np.asarray(x.layers[0].weight[0]), float(x.layers[0].bias[0])
    s = 1 / (1 + np.exp(-5 * (w @ xi + c - etas)))
    return float(np.mean(4 * 5 * s * (1 - s)) * (w @ w))


def test_curvature_where_lam_is_too_small_on_purpose():
    """Affine rule: the Hessian of the loss has rank one and is known."""
    settings = {**TINY, "rule": "affine", **GIVEN}
    application = wdro_si.make(**{**settings, "lam": 0.05})
    x = near_demand(application.x1)
    data = jax.tree.map(np.asarray, application.problem.data)
    worst = max(bending(x, data.contexts[i], data.outcomes[i]) for i in range(2))
    found = bx.curvature(application.problem, x, key=random.key(0), points=1).smallest
    assert found == pytest.approx(2 * 0.05 - worst, rel=1e-9) and found < 0
    enough = wdro_si.monitor(application.problem, x, 0.05, key=random.key(0))["enough_lam"]
    assert enough >= worst / 2 - 1e-9


def test_too_small_a_lam_is_reported_once():
    application = wdro_si.make(**{**TINY, "lam": 0.05, "rule": "affine", "m": 50}, **GIVEN)
    x = near_demand(application.x1)
    with pytest.warns(UserWarning, match=r"`lam` of wdro_si is 0.05, too small at this x: .* lam > [0-9.]+ would do"):
        row = application.metrics(x)
    assert row["min_curvature"] < 0 and row["enough_lam"] == pytest.approx(0.05 - row["min_curvature"] / 2)
    application.metrics(x)  # silent, or the suite fails: warnings are errors


def slope(w, eta):
    """d l_beta / d order for h = 1, b = 3, beta = 5."""
    s = 1 / (1 + np.exp(-5 * (w - eta)))
    return s - 3 * (1 - s)


def pair_of(problem, key):
    """The stored pair that the estimators draw with this key."""
    contexts, demands = np.asarray(problem.data.contexts), np.asarray(problem.data.outcomes)
    i = int(random.randint(random.split(key, 4)[0], (), 0, demands.size))
    return contexts[i // demands.shape[1]], demands.ravel()[i]


def test_erm_is_sgd_on_the_stored_pairs():
    problem, x1, metrics = wdro_si.make(**TINY, rule="affine", formulation="erm")
    assert "min_curvature" not in metrics(x1)
    x, key = near_demand(x1), random.key(3)
    result = bx.minimize(problem, bx.dl_sgd(1), optax.sgd(0.1), x, key=key, T=4, progress=False)
    w, c = np.asarray(x.layers[0].weight[0]), float(x.layers[0].bias[0])
    for t in range(1, 5):
        xi, eta = pair_of(problem, random.split(random.fold_in(key, t))[0])
        step = 0.1 * slope(w @ xi + c, eta)
        w, c = w - step * xi, c - step
    np.testing.assert_allclose(result.x.layers[0].weight[0], w, rtol=1e-12)
    np.testing.assert_allclose(result.x.layers[0].bias, [c], rtol=1e-12)


def algorithm_5(x, xi, eta, lam, T_in, rate):
    """G_t of Algorithm 5 in NumPy, with Adam's usual constants and steps that fall linearly to 0."""
    w, c = np.asarray(x.layers[0].weight[0]), float(x.layers[0].bias[0])
    y, m, v = xi.copy(), np.zeros_like(xi), np.zeros_like(xi)
    for s in range(T_in):
        ascent = slope(w @ y + c, eta) * w - 2 * lam * (y - xi)
        m, v = 0.9 * m + 0.1 * ascent, 0.999 * v + 0.001 * ascent**2
        step = (m / (1 - 0.9 ** (s + 1))) / (np.sqrt(v / (1 - 0.999 ** (s + 1))) + 1e-8)
        y = y + rate * (1 - s / T_in) * step
    return slope(w @ y + c, eta) * np.r_[y, 1.0], y


def test_wdro_is_algorithm_5():
    settings = {**TINY, "rule": "affine", "lam": 2.0}
    problem, x1, _ = wdro_si.make(**settings, **GIVEN, formulation="wdro", T_in=12, inner_rate=0.05)
    x = near_demand(x1)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam needs it
        estimate = jax.jit(lambda key: bx.dl_sgd(1).estimate(key, problem, x, ())[0])
        for seed in range(5):
            found = estimate(random.key(seed))
            xi, eta = pair_of(problem, random.key(seed))
            wanted, y = algorithm_5(x, xi, eta, 2.0, 12, 0.05)
            assert np.linalg.norm(y - xi) > 1e-3
            grad = np.r_[found.grad.layers[0].weight[0], found.grad.layers[0].bias]
            np.testing.assert_allclose(grad, wanted, rtol=1e-7)  # optax takes powers of 0.9 in float32
        assert int(found.cost.grad_g) == 12 and int(found.cost.hess_g) == 0


def test_default_inner_steps_of_wdro_come_near_the_adversarys_answer():
    problem, x1, _ = wdro_si.make(**{**TINY, "d": 10, "lam": 1.0}, **GIVEN, formulation="wdro")
    x = near_demand(x1)

    def distances(i):
        xi = problem.nth_context(i)
        y = problem.lower(random.key(0), problem, x, xi, 1).last
        best = answer(problem, x, xi)[1]
        return jnp.linalg.norm(y - best), jnp.linalg.norm(best - xi.value)

    with jax.numpy_dtype_promotion("standard"):
        left, whole = jax.jit(jax.vmap(distances))(jnp.arange(6, dtype=jnp.int32))
    assert jnp.sum(left) < 0.25 * jnp.sum(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(lam=0.0), "`lam` of wdro_si must be a positive number. Got 0.0"),
        (dict(m=0), "`m` of wdro_si must be an integer >= 1. Got 0"),
        (dict(M=0), "`M` of wdro_si must be an integer >= 1. Got 0"),
        (dict(h=-1.0), "`h` of wdro_si must be a positive number"),
        (dict(beta=0.0), "`beta` of wdro_si must be a positive number"),
        (dict(rule="tree"), "`rule` of wdro_si must be one of 'mlp', 'affine'. Got 'tree'"),
        (dict(formulation="dro"), "`formulation` of wdro_si must be one of 'wdro_si', 'wdro', 'erm'. Got 'dro'"),
        (dict(activation="step"), "`activation` of wdro_si must be one of 'softplus', 'tanh', 'relu'. Got 'step'"),
        (dict(widths=(0,)), r"`widths` of wdro_si must be positive integers, e.g. \(64, 32\)"),
        (dict(d=0), "`d` of wdro_si must be an integer >= 1"),
        (dict(T_in=0), "`T_in` of wdro_si must be an integer >= 1"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        wdro_si.make(**{**TINY, **change})
