"""What MAML, iMAML, BSVRB, SOBA and TTSA have in common: contract, costs, refusals, and the minimiser they meet at."""

import dataclasses
import inspect
from collections import Counter

import jax
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree
from small_problems import decaying, final, once

import bilevelax as bx
from bilevelax.estimators import catalogue
from bilevelax.testing import check_estimator

SHARED = {
    "maml": bx.maml(3, 0.05),
    "first-order maml": bx.maml(2, first_order=True, batch=2),
    "imaml": bx.imaml(n=3, steps=2, cg_steps=2),
    "tight imaml": bx.imaml(n=2, steps=None, cg_steps=50),
    "soba": bx.single_loop("soba", batch=2),
    "ttsa": bx.single_loop("ttsa", inverse=bx.neumann(3)),
}
TABLES = {
    "soba table": bx.single_loop("soba", table=True),
    "ttsa table": bx.single_loop("ttsa", table=True, inverse=bx.neumann(3), batch=2),
    "bsvrb 1": bx.bsvrb(1, blocks=3, batch=2),
    "bsvrb 2": bx.bsvrb(2, blocks=4),
}


METHODS = {
    "bsvrb 1": bx.bsvrb(1, blocks=2),
    "bsvrb 2": bx.bsvrb(2, blocks=2),
    "soba table": bx.single_loop("soba", table=True, beta=0.2),
    "ttsa table": bx.single_loop("ttsa", table=True, beta=0.2, inverse=bx.dense(1)),
    "rt_mlmc": bx.minibatch(bx.rt_mlmc(8, lower=bx.epoch_sgd(beta0=2.0), inverse=bx.dense(1)), 4, mode="loop"),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_with_a_table_and_rt_mlmc_meet_at_the_minimiser(name, multi_block):
    """All meet at x* = (1.44, -1.02), started at 0, with a third of the blocks or one of them per step.

    Over 8 keys no mean was off by more than two standard errors, and no standard deviation above 0.015.
    """
    noisy, _, x1, x_star = multi_block
    x = final(noisy, METHODS[name], decaying(2.0, 40), x1, 8000)
    np.testing.assert_allclose(x, x_star, rtol=0, atol=0.05)


def counted(problem, calls):
    """The problem, counting what is really evaluated, at run time."""

    def note(name, tag):
        jax.debug.callback(lambda _: calls.update([name]), tag)

    def loss(name, function):
        def noted(x, y, eta, xi):
            note(name, jax.lax.stop_gradient(ravel_pytree(eta)[0]))
            return function(x, y, eta, xi)

        return noted

    def sample_context(key, data):
        note("xi", random.key_data(key))
        return problem.sample_context(key, data)

    def sample_conditional(key, xi, data):
        note("eta", random.key_data(key))
        return problem.sample_conditional(key, xi, data)

    return dataclasses.replace(
        problem,
        f=loss("f", problem.f),
        g=loss("g", problem.g),
        sample_context=sample_context,
        sample_conditional=sample_conditional,
    )


IN_NUMBERS = {  # xi, eta, grad_f, grad_g, hess_g, cross_g of those that draw no number of products; d_y = 3
    "maml": (1, 4, 1, 3, 3, 3),
    "first-order maml": (1, 6, 2, 4, 0, 0),
    "imaml": (1, 6, 3, 6, 6, 3),
    "soba": (8, 8, 2, 2, 2, 2),
    "soba table": (1, 4, 1, 1, 1, 1),
    "bsvrb 1": (3, 18, 12, 12, 12 * 3, 12),
    "bsvrb 2": (4, 12, 8, 8, 8, 8),
}


@pytest.mark.parametrize("name", [*SHARED, *TABLES])
def test_costs_are_what_runs(name, multi_block, key):
    """Each derivative evaluates its loss once: f runs grad_f times, g runs grad_g + hess_g + cross_g times."""
    problem, _, x, _ = multi_block
    estimator, calls = {**SHARED, **TABLES}[name], Counter()
    est, _ = jax.block_until_ready(once(estimator, key, counted(problem, calls), x))
    jax.effects_barrier()
    cost = {field: int(count) for field, count in est.cost.asdict().items()}
    assert IN_NUMBERS.get(name, tuple(cost.values())) == tuple(cost.values())
    assert calls["eta"] == cost["eta"]
    assert calls["f"] == cost["grad_f"]
    unrolled = name in ("maml", "first-order maml")  # the reverse pass has no calls of its own
    products = cost["hess_g"] // (3 if name == "bsvrb 1" else 1)  # d_y columns of a Hessian share one run
    assert calls["g"] == cost["grad_g"] + (0 if unrolled else products + cost["cross_g"])
    if name not in TABLES:  # tables take their contexts by number
        assert calls["xi"] == cost["xi"]


@pytest.mark.parametrize("name", ["maml", "tight imaml"])
def test_contract_on_pytrees(name, softmax, key):
    problem, x = softmax
    check_estimator(SHARED[name], problem, x, key=key)


@pytest.mark.parametrize("name", ["ttsa table", "bsvrb 1"])
def test_contract_with_tables(name, multi_block, key):
    problem, _, x, _ = multi_block
    check_estimator(TABLES[name], problem, x, key=key)


def test_they_are_found_and_have_defaults():
    for name in ("maml", "imaml", "bsvrb", "single_loop"):
        factory = catalogue.load(name)
        assert factory is getattr(bx, name)
        assert all(p.default is not p.empty for p in inspect.signature(factory).parameters.values())
        assert factory().init is not None
    assert not any(name.startswith("_") for name in catalogue.names())


def test_refusals(quadratic, multi_block, x, key):
    for estimator, owner in ((bx.bsvrb(), "bsvrb"), (bx.single_loop(table=True), r"single_loop\(table=True\)")):
        with pytest.raises(ValueError, match=f"{owner} keeps a row for each context, so it needs finitely many"):
            estimator.init(quadratic, x)
    problem, _, x1, _ = multi_block
    with pytest.raises(
        ValueError, match=r"d_y <= `largest` = 2. Got d_y = 3 and 6 contexts: 4.32e-07 GB. Use version=2"
    ):
        bx.bsvrb(1, largest=2).init(problem, x1)
    unknown = dataclasses.replace(problem, mu_g=None, L_g1=None)
    with pytest.raises(ValueError, match="`mu` of bsvrb must be given"):
        once(bx.bsvrb(1, tau=0.1), key, unknown, x1)
    for estimator, name in ((bx.bsvrb(), "`tau` of bsvrb"), (bx.single_loop(), "`beta` of single_loop")):
        with pytest.raises(ValueError, match=f"{name} must be given where the problem does not know L_g1"):
            once(estimator, key, unknown, x1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bx.maml(m=0), "`m` of maml must be an integer >= 1. Got 0"),
        (lambda: bx.maml(gamma=-1.0), "`gamma` of maml must be a positive number. Got -1.0"),
        (lambda: bx.imaml(n=0), "`n` of imaml"),
        (lambda: bx.imaml(steps=0), "`steps` of imaml"),
        (lambda: bx.bsvrb(3), "`version` of bsvrb must be one of 1, 2. Got 3"),
        (lambda: bx.bsvrb(a=1.0), "`a` of bsvrb must lie between 0 and 1. Got 1.0"),
        (lambda: bx.bsvrb(b=0.0), r"`b` of bsvrb must lie in \(0, 1\] or be an optax schedule. Got 0.0"),
        (lambda: bx.bsvrb(tau=0.0), "`tau` of bsvrb must be a positive number"),
        (lambda: bx.single_loop("alset"), "`method` of single_loop must be one of 'soba', 'ttsa'. Got 'alset'"),
        (lambda: bx.single_loop(beta=-0.1), "`beta` of single_loop must be a positive number"),
    ],
)
def test_bad_arguments_get_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()
