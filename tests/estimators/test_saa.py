"""saa: the exact hypergradient of the problem on n samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications.quadratic import matrices, problem_of
from bilevelax.exact.linear import cg, direct
from bilevelax.exact.sample_average import newton_solver
from bilevelax.testing import check_estimator

KEY = random.key(0)


def test_closed_form_on_the_quadratic():
    """With the samples of the estimate in hand, every mean is a matrix and the gradient is four lines of NumPy."""
    quadratic = matrices()
    problem, x = problem_of(quadratic), jnp.arange(1.0, 5.0) / 3
    est = jax.jit(lambda key: bx.saa(8).estimate(key, problem, x, ())[0])(KEY)
    key_xi, key_y = random.split(KEY)
    xi = problem.context(key_xi)
    eta = np.asarray(problem.conditionals(random.split(key_y)[0], xi, 8)).mean(0)
    A = quadratic.Q @ np.diag(quadratic.eigenvalues * (1 + eta[1])) @ quadratic.Q.T
    y = np.linalg.solve(A, quadratic.B @ x + quadratic.C @ xi + eta[0])
    grad_y = y - quadratic.q - quadratic.R @ xi + eta[0] + quadratic.S.T @ x
    expected = quadratic.S @ y + quadratic.rho * x + quadratic.B.T @ np.linalg.solve(A, grad_y)
    np.testing.assert_allclose(est.grad, expected, rtol=1e-10)


@pytest.mark.parametrize("linear", [direct(), cg(tol=1e-12)])
def test_all_outcomes_give_the_exact_hypergradient(logistic, linear):
    """The mean over the three contexts is grad F, by central differences of F on tight solutions."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])

    def F(x):
        def cost(i):
            xi = logistic.nth_context(i)
            y = bx.respond(logistic, x, xi, key=KEY)
            return logistic.weighted().f(x, y, logistic.outcomes(xi), xi)

        return sum(cost(i) for i in range(3)) / 3

    estimator = bx.saa("all", newton_solver(tol=1e-12), linear)

    @jax.jit
    def one(key):
        return estimator.estimate(key, logistic, x, ())[0], logistic.context(random.split(key)[0]).row

    grads = {}
    for i in range(20):
        est, row = one(random.fold_in(KEY, i))
        grads[int(row)] = est.grad
        assert int(est.cost.eta) == (5, 8, 3)[int(row)]
    h = 1e-5
    differences = [(F(x + h * e) - F(x - h * e)) / (2 * h) for e in jnp.eye(4)]
    np.testing.assert_allclose(sum(grads.values()) / 3, jnp.stack(differences), rtol=1e-7, atol=1e-8)


def test_contract(softmax, key):
    problem, x = softmax
    check_estimator(bx.saa(4, f_samples="fresh"), problem, x, key=key)


def test_fresh_samples_reach_f_only(quadratic, matrices, x, key):
    """With f's own samples the lower solution stays, and grad f moves by the difference of the mean noises."""
    grads = [
        jax.jit(lambda s=s: bx.saa(4, f_samples=s).estimate(key, quadratic, x, ())[0])() for s in ("same", "fresh")
    ]
    key_xi, key_y = random.split(key)
    xi = quadratic.context(key_xi)
    of_g, of_f = (np.asarray(quadratic.conditionals(k, xi, 4)).mean(0) for k in random.split(key_y))
    A = matrices.Q @ np.diag(matrices.eigenvalues * (1 + of_g[1])) @ matrices.Q.T
    moved = matrices.B.T @ np.linalg.solve(A, of_f[0] - of_g[0])
    np.testing.assert_allclose(grads[1].grad - grads[0].grad, moved, rtol=1e-8)
    assert (int(grads[0].cost.eta), int(grads[1].cost.eta)) == (4, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bx.saa(0), "`n` of saa must be an integer >= 1. Got 0"),
        (lambda: bx.saa("al"), "`n` of saa must be an integer >= 1, or 'all' for every outcome. Got 'al'"),
        (lambda: bx.saa(4, f_samples="other"), "`f_samples` of saa must be one of 'same', 'fresh'"),
        (lambda: newton_solver(0), "`iterations` of newton_solver must be an integer >= 1"),
        (lambda: cg(tol=-1.0), "`tol` of cg must be a positive number"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_all_needs_a_finite_set(quadratic, x, key):
    with pytest.raises(ValueError, match="no finite set of outcomes"):
        bx.saa("all").estimate(key, quadratic, x, ())
