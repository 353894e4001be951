"""Every bad input gets one clear sentence: what, where, the value, the remedy."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.testing import check_problem

GOOD = {
    "f": lambda x, y, eta, xi: jnp.sum(y**2) + jnp.sum(x**2),
    "g": lambda x, y, eta, xi: jnp.sum((y - x - eta - xi) ** 2) / 2,
    "sample_context": lambda key, data: random.normal(key, (2,)),
    "sample_conditional": lambda key, xi, data: random.normal(key, (2,)),
    "init_y": lambda x, xi: jnp.zeros(2),
}


def minimize(x1=None, key=None, T=2, estimator=None, **changes):
    problem = bx.Problem(**{"mu_g": 1.0, "L_g1": 1.0, **GOOD, **changes})
    x1, key = jnp.zeros(2) if x1 is None else x1, random.key(0) if key is None else key
    return bx.minimize(problem, estimator or bx.rt_mlmc(2), optax.sgd(0.1), x1, key=key, T=T)


def test_the_good_problem_runs():
    minimize()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"f": lambda x, y: 0.0}, r"`f` of Problem is called as f\(x, y, eta, xi\), with 4 arguments. Got f\(x, y\)"),
        ({"init_y": lambda x: x}, r"`init_y` of Problem is called as init_y\(x, xi\), with 2 arguments"),
        ({"sample_context": 3}, r"`sample_context` of Problem must be a function. Got 3"),
        ({"mu_g": -1.0}, r"`mu_g` of Problem must be a positive number. Got -1.0"),
        ({"mu_g": 2.0}, r"`mu_g` of Problem must not exceed `L_g1`. Got mu_g = 2 and L_g1 = 1"),
        ({"n_contexts": 3}, r"`n_contexts` and `context_at` of Problem go together"),
        ({"f": lambda x, y, eta, xi: y}, r"`f` of Problem must return one floating-point scalar. Got float64\[2\]"),
        ({"g": lambda x, y, eta, xi: (y, y)}, r"`g` of Problem must return one floating-point scalar. Got \(float64"),
        ({"g": lambda x, y, eta, xi: 3}, r"`g` of Problem must return one floating-point scalar. Got int"),
        ({"init_y": lambda x, xi: {"a": x}}, r"`f` of Problem failed on y = \{a: float64\[2\]\} from init_y"),
        (
            {"init_y": lambda x, xi: jnp.zeros(2, int)},
            r"`init_y` of Problem must return floating point. Got int64 at y",
        ),
        ({"init_y": lambda x, xi: ()}, r"`init_y` of Problem must return at least one array"),
        ({"x1": jnp.zeros(2, int)}, r"`x1` of minimize must be floating point. Got int64; convert it"),
        (
            {"x1": {"a": "text"}},
            r"`x1\['a'\]` of minimize must be an array. Got 'text'; keep what is not optimised out",
        ),
        ({"x1": ()}, r"`x1` of minimize must hold at least one array"),
        ({"key": 0}, r"`key` of minimize must be one JAX random key, e.g. jax.random.key\(0\). Got 0"),
        ({"key": random.split(random.key(0), 3)}, r"`key` of minimize must be one JAX random key"),
        (
            {"support": lambda xi, data: (jnp.zeros((4, 3)), jnp.ones(4) / 4)},
            r"`support` of Problem must return stacked outcomes like .* float64\[2\]. Got a stack of float64\[3\]",
        ),
        ({"T": 0}, r"`T` of minimize must be an integer in \[1, 2147483647\]. Got 0"),
        ({"T": 2.5}, r"`T` of minimize must be an integer in \[1, 2147483647\]. Got 2.5"),
        (
            {"L_g1": None},
            r"neumann needs the smoothness constant L_g1. Set it on the problem: Problem\(..., L_g1=...\)",
        ),
        ({"mu_g": None}, r"`N` of neumann must be given, or Problem\(..., mu_g=...\) from which it follows"),
    ],
)
def test_problem_and_minimize(changes, message):
    with pytest.raises(ValueError, match=message):
        minimize(**changes)


def fails(*args):
    raise KeyError("demand")


@pytest.mark.parametrize("name", ["sample_context", "sample_conditional", "init_y", "support"])
def test_functions_that_fail(name):
    with pytest.raises(ValueError, match=f"`{name}` of Problem failed: KeyError: 'demand' Call it by hand") as e:
        minimize(**{name: lambda *args: fails()})
    assert isinstance(e.value.__cause__, KeyError)


def test_samplers_that_change():
    sizes = itertools.count(1)
    with pytest.raises(
        ValueError, match=r"`sample_context` returned float64\[2\] for xi on the second call and float64\[1"
    ):
        minimize(sample_context=lambda key, data: random.normal(key, (next(sizes),)))
    dtypes = itertools.cycle([jnp.float32, jnp.float64])
    with pytest.raises(
        ValueError, match=r"`sample_conditional` returned float64\[2\] for eta on the second .* float32\[2\]"
    ):
        minimize(sample_conditional=lambda key, xi, data: random.normal(key, (2,), next(dtypes)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bx.rt_mlmc(0), r"`K` of rt_mlmc must be an integer >= 1. Got 0\."),
        (lambda: bx.rt_mlmc(3, batch=0), r"`batch` of rt_mlmc must be an integer >= 1. Got 0"),
        (lambda: bx.rt_mlmc(3, base_level=4), r"`base_level` of rt_mlmc must not exceed K = 3. Got 4"),
        (lambda: bx.dl_sgd(1.5), r"`K` of dl_sgd must be an integer >= 1. Got 1.5"),
        (lambda: bx.neumann(0), r"`N` of neumann must be an integer >= 1. Got 0"),
        (lambda: bx.neumann(3, L=-1), r"`L` of neumann must be a positive number. Got -1"),
        (lambda: bx.neumann(3, scale=0.7), r"`scale` of neumann must be one of 0.5, 1.0. Got 0.7"),
        (lambda: bx.summed_neumann(True), r"`N` of summed_neumann must be an integer >= 1. Got True"),
        (lambda: bx.conjugate_gradient(0), r"`n` of conjugate_gradient must be an integer >= 1. Got 0"),
        (lambda: bx.epoch_sgd(beta0=0), r"`beta0` of epoch_sgd must be a positive number. Got 0"),
        (lambda: bx.epoch_sgd(block=3), r"`block` of epoch_sgd must be even. Got 3"),
        (lambda: bx.optax_steps(optax.sgd(0.1), 0), r"`steps` of optax_steps must be an integer >= 1. Got 0"),
        (lambda: bx.minibatch(bx.rt_mlmc(2), 0), r"`m` of minibatch must be an integer >= 1. Got 0"),
        (
            lambda: bx.minibatch(bx.rt_mlmc(2), 2, "fast"),
            r"`mode` of minibatch must be one of 'stratified', .* Got 'fast'",
        ),
        (lambda: bx.epoch_sgd(beta0=np.inf), r"`beta0` of epoch_sgd must be positive and finite. Got inf"),
        (lambda: bx.maml(gamma=None), r"`gamma` of maml must be a positive number. Got None"),
        (lambda: bx.warm_regression(ridge=None), r"`ridge` of warm_regression must be a positive number. Got None"),
        (
            lambda: bx.warm_regression(forgetting=None),
            r"`forgetting` of warm_regression must lie in \(0, 1\]. Got None",
        ),
        (lambda: bx.certified(eps=None), r"`eps` of certified must be a positive number. Got None"),
        (lambda: bx.certified(0.1, level=None), r"`level` of certified must lie between 0 and 1. Got None"),
        (lambda: bx.sqrt_then_linear(0), r"`t0` of sqrt_then_linear must be an integer >= 1. Got 0"),
    ],
)
def test_factories(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_uncapped_first_step_that_must_diverge():
    steep = {"g": lambda x, y, eta, xi: 100 * jnp.sum((y - x - eta - xi) ** 2), "mu_g": 200.0, "L_g1": 200.0}
    wild = bx.rt_mlmc(2, lower=bx.epoch_sgd(0.4, cap=np.inf))
    with pytest.raises(
        ValueError, match=r"`beta0` of epoch_sgd is 0.4 with no cap but this problem has L_g1 = 200: .* 0.0025"
    ):
        minimize(estimator=wild, **steep)
    minimize(estimator=bx.rt_mlmc(2, lower=bx.epoch_sgd(0.4)), **steep)  # capped by default


def test_from_arrays():
    f, g, init_y = GOOD["f"], GOOD["g"], GOOD["init_y"]
    with pytest.raises(
        ValueError, match=r"`contexts` of from_arrays must be arrays with one row per context. Got shapes"
    ):
        bx.from_arrays(f, g, {"a": np.zeros((3, 2)), "b": np.zeros(4)}, np.zeros((3, 5)), init_y=init_y)
    with pytest.raises(ValueError, match=r"`outcomes` of from_arrays must have shape \(M, m, ...\) with M = 3"):
        bx.from_arrays(f, g, np.zeros((3, 2)), np.zeros((4, 5)), init_y=init_y)
    with pytest.raises(
        ValueError, match=r"at least one outcome for each of the 2 contexts. Got 2 entries, the shortest with 0"
    ):
        bx.from_arrays(f, g, np.zeros((2, 2)), [np.zeros(3), np.zeros(0)], init_y=init_y)


def test_respond_and_evaluate():
    problem = bx.Problem(**GOOD)
    with pytest.raises(ValueError, match="`key` of respond must be one JAX random key"):
        bx.respond(problem, jnp.zeros(2), jnp.zeros(2), key=1)
    with pytest.raises(ValueError, match=r"`level` of evaluate must lie between 0 and 1. Got 95"):
        bx.evaluate(problem, jnp.zeros(2), key=random.key(0), level=95)
    with pytest.raises(ValueError, match=r"`level` of evaluate must lie between 0 and 1. Got None"):
        bx.evaluate(problem, jnp.zeros(2), key=random.key(0), level=None)
    with pytest.raises(ValueError, match="This problem has no numbered contexts"):
        problem.nth_context(0)


def test_a_raw_key_is_a_key():
    minimize(key=jax.random.PRNGKey(0))


def test_load_of_what_is_no_run(tmp_path):
    with pytest.raises(
        ValueError, match=r"`folder` of Result.load must hold a saved run. Got .* which has no manifest.json"
    ):
        bx.Result.load(tmp_path)


def test_check_problem_on_a_replaced_sampler(quadratic, x, key):
    state = itertools.count()
    broken = dataclasses.replace(quadratic, sample_context=lambda key, data: jnp.full(2, float(next(state))))
    with pytest.raises(AssertionError, match="sample_context gave two different xi for one key"):
        check_problem(broken, x, key=key)
