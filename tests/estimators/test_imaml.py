"""iMAML against the exact hypergradient and against differences."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree
from small_problems import once

import bilevelax as bx
from bilevelax.applications import quadratic as quadratic_application


@pytest.mark.parametrize("settings", [{"steps": None}, {"steps": 400}])
def test_imaml_is_the_exact_hypergradient_when_both_solves_are_tight(settings, key):
    oracle = quadratic_application.matrices(d_x=3, d_y=4, d_xi=2, noise=0.0, hessian_noise=0.0)
    problem = quadratic_application.problem_of(oracle)
    x = np.array([0.3, -0.7, 0.5])
    xi = np.asarray(problem.context(random.split(key, 3)[0]))
    y = oracle.y_star(x, xi)
    grad_y = y - oracle.q - oracle.R @ xi + oracle.S.T @ x
    expected = oracle.S @ y + oracle.rho * x + oracle.B.T @ np.linalg.solve(oracle.A, grad_y)
    est, _ = once(bx.imaml(n=1, cg_steps=50, **settings), key, problem, jnp.asarray(x))
    np.testing.assert_allclose(est.grad, expected, rtol=1e-10)
    rough, _ = once(bx.imaml(n=1, cg_steps=2, **settings), key, problem, jnp.asarray(x))
    assert np.abs(rough.grad - expected).max() > 1e-3  # d_y = 4 eigenvalues: two products are not enough


def test_imaml_differentiates_the_answer_on_its_samples(quartic, key):
    """g12 depends on y here, and is no multiple of I: central differences of f at the tight answer."""
    n, problem = 5, quartic.problem.averaged(5)
    key_xi, key_g, key_f = random.split(key, 3)
    xi = problem.context(key_xi)
    train, test = (np.asarray(problem.conditional(k, xi)) for k in (key_g, key_f))

    def paid(x):
        y = np.zeros(2)
        for _ in range(50):  # Newton: the mean Hessian is diagonal and >= 1
            slope = np.mean([quartic.slope(x, y, e, np.asarray(xi)) for e in train], axis=0)
            y = y - np.linalg.solve(np.mean([quartic.hessian(x, y, e) for e in train], axis=0), slope)
        return np.mean([np.sum((y - quartic.q - e) ** 2) / 2 for e in test]) + x @ quartic.S @ y

    x = np.asarray(ravel_pytree(quartic.x)[0])
    expected = [(paid(x + h) - paid(x - h)) / 2e-5 for h in 1e-5 * np.eye(3)]
    est, _ = once(bx.imaml(n=n, steps=None, cg_steps=20), key, quartic.problem, quartic.x)
    np.testing.assert_allclose(ravel_pytree(est.grad)[0], expected, rtol=1e-7)
