"""Several hypergradients with one set of draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.core.hypergradient import hypergradient, hypergradients
from bilevelax.core.problem import SMALL

MARK = "tan"  # an operation that only the sampler of `curved` has


def curved(d):
    """A strongly convex follower's problem in R^d whose Hessian depends on y and on the sample."""
    return bx.Problem(
        f=lambda x, y, eta, xi: jnp.sum(x * y) + 0.5 * jnp.sum((y - eta) ** 2),
        g=lambda x, y, eta, xi: jnp.sum(jnp.logaddexp(0.0, y - eta)) + 0.5 * jnp.sum((y - x - xi) ** 2),
        sample_context=lambda key, data: random.uniform(key),
        sample_conditional=lambda key, xi, data: xi + jnp.tan(random.uniform(key, (d,))),
        init_y=lambda x, xi: jnp.zeros(d),
        mu_g=1.0,
        L_g1=1.25,
    )


@pytest.mark.parametrize("inverse", [bx.neumann(6), bx.dense(3)], ids=["draws once for many", "any callable"])
@pytest.mark.parametrize("d", [3, SMALL + 1])
@pytest.mark.parametrize(("n", "batch"), [(2, 1), (3, 2)])
def test_rows_are_the_hypergradients_at_their_points(d, n, batch, inverse):
    problem, key = curved(d), random.key(3)
    x, xi, ys = jnp.ones(d), jnp.asarray(0.3), random.normal(random.key(1), (3, d))
    rows, cost = jax.jit(lambda n: hypergradients(key, problem, x, ys, n, xi, inverse, batch))(n)
    alone = jax.jit(lambda y: hypergradient(key, problem, x, y, xi, inverse, batch))
    for i in range(n):
        one, one_cost = alone(ys[i])
        np.testing.assert_allclose(rows[i], one, rtol=1e-12, atol=1e-13)
    assert jax.tree.map(int, cost) == jax.tree.map(int, one_cost.at_points(n))


@pytest.mark.parametrize("d", [3, SMALL + 1])
def test_all_points_share_one_sampler(d):
    """eta', eta'' are drawn in one place and (eta_n) in another, whatever the number of points."""
    problem, inverse = curved(d), bx.neumann(6)
    x, ys = jnp.ones(d), jnp.ones((3, d))
    text = lambda function: jax.jit(function).lower(random.key(0)).as_text()
    together = text(lambda key: hypergradients(key, problem, x, ys, 3, jnp.zeros(()), inverse)[0])
    alone = text(lambda key: [hypergradient(key, problem, x, y, jnp.zeros(()), inverse)[0] for y in ys])
    assert together.count(f"stablehlo.{MARK}") == 2
    assert alone.count(f"stablehlo.{MARK}") == 6  # control


def test_large_answers_are_not_computed_for_nothing():
    """Counted while it runs: gradients of f, two at the base level and three above."""
    seen = []
    d = SMALL + 1
    problem = curved(d)

    def f(x, y, eta, xi):
        jax.debug.callback(lambda: seen.append(1))
        return problem.f(x, y, eta, xi)

    levels = bx.rt_mlmc(2, inverse=bx.neumann(2)).levels
    at_level = jax.jit(lambda k: levels.at_level(k, random.key(0), problem.replace(f=f), jnp.ones(d)))
    for k, evaluations in ((1, 2), (2, 3)):
        seen.clear()
        cost = jax.block_until_ready(at_level(jnp.int32(k))).cost
        jax.effects_barrier()
        assert len(seen) == int(cost.grad_f) == evaluations
