"""What `check` must say of problems that mislead it: each of these once passed, or failed though it was right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnosed import SMALL
from jax import lax, random

import bilevelax as bx
from bilevelax.diagnostics.part_errors import finite_differences
from bilevelax.diagnostics.samplers import sampler_rows

KEY = random.key(0)


def plain(f=None, g=None, **changes):
    return bx.Problem(
        **{
            "f": f or (lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2),
            "g": g or (lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2) / 2),
            "sample_context": lambda key, data: random.normal(key, (2,)),
            "sample_conditional": lambda key, xi, data: random.normal(key, (2,)) / 10,
            "init_y": lambda x, xi: jnp.zeros(2),
            **changes,
        }
    )


def stored(**changes):
    rng = np.random.default_rng(0)
    problem = bx.from_arrays(
        lambda x, y, eta, xi: jnp.sum((y - xi) ** 2),
        lambda x, y, eta, xi: jnp.sum((y - x - eta) ** 2),
        rng.normal(size=(6, 2)),
        rng.normal(size=(6, 9, 2)),
        init_y=lambda x, xi: jnp.zeros(2),
    )
    return problem.replace(**changes)


def halved(xi, data):
    etas, weights = stored().support(xi, data)
    return etas, weights / 2


def tilted(xi, data):
    etas, weights = stored().support(xi, data)
    rising = jnp.arange(1.0, 1 + len(weights)) ** 2
    return etas, rising / rising.sum()


LAWS = {
    "right": ({}, None),
    "contexts ignore their key": (
        {"sample_context": lambda key, data: stored().context_at(0, data)},
        "sample_context against context_at",
    ),
    "contexts of another law": (
        {"sample_context": lambda key, data: stored().context_at(random.randint(key, (2,), 0, 6).min(), data)},
        "sample_context against context_at",
    ),
    "weights that sum to one half": ({"support": halved}, "weights of support"),
    "outcomes of another law": ({"support": tilted}, "sample_conditional against support"),
}


@pytest.mark.parametrize("name", LAWS)
def test_samplers_draw_what_is_listed(name):
    changes, row = LAWS[name]
    rows = {each.name: each for each in sampler_rows(stored(**changes), KEY)}
    assert [each for each in rows if rows[each].ok is False] == ([row] if row else []), rows


def test_a_right_sampler_is_not_blamed():
    """200 keys: each test's rate is 1e-5."""
    problem = stored()
    assert all(row.ok for i in range(200) for row in sampler_rows(problem, random.fold_in(KEY, i)))


def two_leaves(stopped):
    """x has a layer and a bias; the gradient of one is stopped."""
    x = {"W": jnp.full((20, 2), 0.1), "b": jnp.asarray([0.3])}

    def used(x):
        x = {name: lax.stop_gradient(a) if name == stopped else a for name, a in x.items()}
        return x["W"].sum(0) / 4 + x["b"]

    return plain(g=lambda x, y, eta, xi: jnp.sum((y - used(x) - eta) ** 2) / 2), x


@pytest.mark.parametrize("stopped", [None, "W", "b"])
def test_every_leaf_is_looked_at(stopped):
    problem, x = two_leaves(stopped)
    found = finite_differences(KEY, problem, x, 4, 16)
    assert found.leaves == ((f"['{stopped}']",) if stopped else ())


def test_a_contradiction_is_a_failure():
    """A step of size one in f: its gradient is zero everywhere, and F moves with the share of contexts beyond."""
    step = lambda a: jnp.sum(jax.nn.sigmoid(1e7 * lax.stop_gradient(0.0 * a)) + lax.stop_gradient(a))
    report = bx.check(plain(f=lambda x, y, eta, xi: step(y)), jnp.ones(2), key=KEY, **SMALL)
    failed = {row.name for row in report.failed}
    assert "gradient against finite differences" in failed, str(report)


def test_a_large_constant_is_no_alarm():
    """1e6 in f, float32: rounding of f is no wrong gradient."""
    one = lambda key: random.normal(key, (2,), jnp.float32)
    problem = plain(
        f=lambda x, y, eta, xi: jnp.sum((y - xi) ** 2) / 2 + 1e6,
        sample_context=lambda key, data: one(key),
        sample_conditional=lambda key, xi, data: one(key) / 10,
        init_y=lambda x, xi: jnp.zeros(2, jnp.float32),
    )
    report = bx.check(problem, jnp.ones(2, jnp.float32), key=KEY, estimator=bx.saa(8), **SMALL)
    assert report.ok, str(report)


def test_a_wrong_sign_fails_where_contexts_differ_much():
    """Terms of size 40 that cancel in the mean: the bias is small against them and turns the gradient around."""

    def backwards(key, problem, x):
        right = bx.saa(2).estimate(key, problem, x, ())[0]
        return right._replace(grad=right.grad - 3.0)

    problem = plain(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2) / 2 + 40 * jnp.sign(xi[0]) * jnp.sum(y),
        sample_context=lambda key, data: jnp.where(random.bernoulli(key), 1.0, -1.0) * jnp.ones(2),
        n_contexts=2,
        context_at=lambda i, data: jnp.where(i == 0, 1.0, -1.0) * jnp.ones(2),
    )
    right = bx.minibatch(bx.saa(2), 2, contexts="spread")
    wrong = bx.minibatch(bx.stateless(backwards, contexts=bx.saa(2).contexts), 2, contexts="spread")
    report = bx.check(problem, jnp.full(2, 3.0), key=KEY, estimator={"right": right, "wrong": wrong}, **SMALL)
    assert [row.name for row in report.failed] == ["wrong: gradient"], str(report)


def test_undecided_rows_are_in_the_headline():
    """200 dimensions, one of them flat."""
    flat = jnp.ones(200).at[0].set(0.0)
    problem = plain(
        f=lambda x, y, eta, xi: jnp.sum((y - 1) ** 2),
        g=lambda x, y, eta, xi: jnp.sum(flat * (y - x[0] - eta[0]) ** 2),
        init_y=lambda x, xi: jnp.zeros(200),
    )
    report = bx.check(problem, jnp.ones(1), key=KEY, estimator=bx.saa(2), **SMALL)
    assert not report.verdict.startswith("OK: "), str(report)
