"""Every estimator on every application at its smallest size: shapes, costs, precisions, means, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import LONG, STIFF, K, exact, exact_pairs, finite, flat, in_a_row, pairs, smallest
from jax import random

import bilevelax as bx
from bilevelax import estimators
from bilevelax.base.compiling import program
from bilevelax.core.minibatch import MODES
from bilevelax.testing import assert_mean

DRAWS = 1000  # of which the first half lets estimators with a state settle
POWER = 0.25  # a mean that is off by that part of the gradient's size is seen
BIAS = 0.01  # what a finite number of steps may leave


SLOW = {"scheduling": {"antithetic_mlmc", "dl_sgd", "rt_mlmc"}, "stackelberg_pricing": {"dl_sgd", "rt_mlmc"}}


def marked(cases):
    """Followers on polyhedra take long to compile: of two applications with them, the fast suite runs a part."""
    return [pytest.param(e, a, marks=pytest.mark.slow) if e in SLOW.get(a, ()) else (e, a) for e, a in cases]


def dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree)}


def looks(tree):
    return jax.tree.map(lambda a: (a.shape, a.dtype), tree)


def assert_one_sentence(error):
    message = str(error)
    assert "\n" not in message and message.endswith(".") and 20 < len(message) < 300, message


def is_numbered(problem):
    try:
        return problem.nth_context(0) is not None
    except ValueError:
        return False


FEW = {"amortised": {"m": 4, "warm_up": 1, "width": 4}}


def traced(estimator, *at):
    """The looks of its first state."""
    return jax.eval_shape(estimator.init, *at)


def made(estimator, app, init=lambda estimator, *at: estimator.init(*at)):
    """(estimator, its first state), or None where it refuses a constraint, or contexts without numbers."""
    with_defaults = estimators.catalogue.load(estimator)(**FEW.get(estimator, {}))
    try:
        state = init(with_defaults, app.problem, app.x1)
        if app.problem.constraint is not None:  # some look at it when they are traced
            jax.eval_shape(with_defaults.estimate, random.key(0), app.problem, app.x1, state)
        return with_defaults, state
    except ValueError as error:
        assert_one_sentence(error)
        constrained = app.problem.constraint is not None and "`constraint`" in str(error)
        assert (constrained or not is_numbered(app.problem)) and f"{estimator} " in str(error)
        return None


@pytest.mark.parametrize(("estimator", "application"), marked(pairs()))
def test_single_precision(estimator, application):
    """As users run them: shapes and dtypes of x, finite, costs that count, equal keys give equal numbers."""
    app = smallest(application, False)
    with jax.enable_x64(False):
        found = made(estimator, app)
        if found is None:
            return
        run = in_a_row(found[0])
        keys = random.split(random.key(3), 2)
        after, estimates = run(keys, app.problem, app.x1, found[1])
        again = run(keys, app.problem, app.x1, found[1])
    assert looks(jax.tree.map(lambda a: a[0], estimates.grad)) == looks(app.x1)
    assert dtypes(estimates.grad) == {jnp.dtype(jnp.float32)} and looks(after) == looks(found[1])
    assert np.isfinite(flat(estimates.grad)).all()
    costs = estimates.cost.asdict()
    assert all(np.issubdtype(each.dtype, np.integer) and (each >= 0).all() for each in costs.values())
    assert (costs["xi"] >= 1).all() and (costs["eta"] >= 1).all() and (costs["grad_f"] >= 1).all()
    jax.tree.map(np.testing.assert_array_equal, (after, estimates), again)


@pytest.mark.parametrize(("estimator", "application"), marked(pairs()))
def test_double_precision(estimator, application, key):
    """Traced only: what comes out has the shapes and dtypes of x, and the state keeps its own."""
    app = smallest(application, True)
    found = made(estimator, app, traced)
    if found is not None:
        estimate, after = jax.eval_shape(found[0].estimate, key, app.problem, app.x1, found[1])
        assert looks(estimate.grad) == looks(app.x1) and dtypes(estimate.grad) == {jnp.dtype(jnp.float64)}
        assert looks(after) == looks(found[1])


def flat_gradient(application):
    return flat(jax.tree.map(lambda a: np.asarray(a)[None], finite(application)[2]))[0]


def settled(estimator, application, draws=DRAWS):
    """Gradients at one x, in rows, after half of the draws."""
    problem, x, _ = finite(application)
    _, estimates = in_a_row(estimator)(random.split(random.key(4), draws), problem, x, estimator.init(problem, x))
    return flat(estimates.grad)[draws // 2 :]


def assert_gradient(rows, expected):
    scale = float(np.linalg.norm(expected))
    assert_mean(rows, expected, power=POWER * scale, bias=BIAS * scale)


@pytest.mark.parametrize(("estimator", "application"), marked(exact_pairs()))
def test_mean_is_the_gradient(estimator, application):
    if made(estimator, smallest(application, True), traced) is None:
        return
    rows, expected = settled(exact(estimator, application), application), flat_gradient(application)
    assert_gradient(rows, expected)
    with pytest.raises(AssertionError, match="the mean is off by"):
        assert_gradient(rows, (1 + 2 * POWER) * expected)


def off(estimator, application):
    """Bias over the gradient's size, without noise: g has none, and every context is taken once."""
    problem, x, _ = finite(application)

    def at(i):
        here = problem.replace(sample_context=lambda key, data: problem.nth_context(i))
        return estimator.estimate(random.key(0), here, x, ())[0].grad

    every = program()(lambda: jax.lax.map(at, jnp.arange(problem.n_contexts, dtype=jnp.int32)))()
    expected = flat_gradient(application)
    return float(np.linalg.norm(flat(every).mean(0) - expected) / np.linalg.norm(expected))


@pytest.mark.slow
@pytest.mark.parametrize("application", STIFF)
def test_stiff_followers_have_a_bias_that_more_epochs_remove(application):
    """Why these take more epochs above. 126 steps of 1 / (2 L_g1) leave (1 - mu_g / 2 L_g1)^126 = 53 % of an error."""
    assert off(exact("dl_sgd", application, K), application) > POWER
    assert off(exact("dl_sgd", application), application) < BIAS / 100


def test_a_gradient_without_the_implicit_term_is_seen():
    """Control: the same estimator, wrong."""
    wrong = bx.dl_sgd(6, LONG, bx.none())
    with pytest.raises(AssertionError, match="the mean is off by"):
        assert_gradient(settled(wrong, "quadratic"), flat_gradient("quadratic"))


BATCHES = [
    *[("rt_mlmc", "quadratic", {"mode": mode}) for mode in MODES],
    ("rt_mlmc", "meta_learning", {}),
    ("saa", "end_to_end", {"contexts": "spread"}),
    ("antithetic_mlmc", "personalized_fl", {"mode": "shared"}),
    ("imaml", "wdro_si", {"mode": "loop"}),
]


@pytest.mark.parametrize(("estimator", "application", "settings"), BATCHES)
def test_mean_of_a_minibatch_is_the_gradient(estimator, application, settings):
    batch = bx.minibatch(exact(estimator, application), 4, **settings)
    assert_gradient(settled(batch, application, DRAWS // 2), flat_gradient(application))


SENSELESS = {
    "rows for contexts without numbers": (bx.single_loop(table=True), "quadratic"),
    "all outcomes of a continuum": (bx.saa("all"), "quadratic"),
    "all outcomes of a continuum on top": (bx.antithetic_mlmc(exact_top=True), "quadratic"),
    "contexts without numbers, spread": (bx.minibatch(bx.saa(2), 4, contexts="spread"), "quadratic"),
    "a batch of what keeps a state": (bx.minibatch(bx.single_loop(), 4), "meta_learning"),
    "a batch of what keeps rows": (bx.minibatch(bx.bsvrb(), 4), "meta_learning"),
    "spread contexts of one who draws them in secret": (
        bx.minibatch(bx.saa(2)._replace(contexts=None), 4, contexts="spread"),
        "meta_learning",
    ),
    "Hessians that fill the memory": (bx.bsvrb(1, largest=1), "meta_learning"),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_senseless_pairs_are_refused_in_a_sentence(name, key):
    estimator, application = SENSELESS[name]
    problem, x, _ = smallest(application, True)
    with pytest.raises(ValueError) as refused:
        jax.eval_shape(estimator.estimate, key, problem, x, estimator.init(problem, x))
    assert_one_sentence(refused.value)
