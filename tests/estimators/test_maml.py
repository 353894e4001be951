"""MAML against the adjoint of its steps and against the paper's formula."""

import jax
import numpy as np
import pytest
from jax import random
from jax.flatten_util import ravel_pytree
from small_problems import once

import bilevelax as bx


def maml_draws(problem, key, m):
    key_xi, key_y, key_f = random.split(key, 3)
    xi = problem.context(key_xi)
    steps = [np.asarray(problem.conditional(random.fold_in(key_y, j), xi)) for j in range(m)]
    return np.asarray(xi), steps, np.asarray(problem.conditional(key_f, xi))


@pytest.mark.parametrize("m", [1, 4])
def test_maml_is_the_adjoint_of_its_steps(quartic, m, key):
    gamma, problem = 0.07, quartic.problem
    xi, etas, eta = maml_draws(problem, key, m)
    x = np.asarray(ravel_pytree(quartic.x)[0])
    ys = [quartic.C @ x + xi]
    for e in etas:
        ys.append(ys[-1] - gamma * quartic.slope(x, ys[-1], e, xi))
    grad, adjoint = quartic.grads_f(x, ys[-1], eta)
    first_order = grad + quartic.C.T @ adjoint
    for e, y in zip(etas[::-1], ys[-2::-1], strict=True):
        grad = grad - gamma * quartic.mixed(y).T @ adjoint
        adjoint = adjoint - gamma * quartic.hessian(x, y, e) @ adjoint
    grad = grad + quartic.C.T @ adjoint

    for estimator, expected in ((bx.maml(m, gamma), grad), (bx.maml(m, gamma, first_order=True), first_order)):
        est, _ = once(estimator, key, problem, quartic.x)
        np.testing.assert_allclose(ravel_pytree(est.grad)[0], expected, rtol=1e-12)
    assert np.abs(grad - first_order).max() > 0.01


def test_one_step_of_1_over_lam_is_the_papers_maml(softmax, key):
    """From y = x the proximal term has no gradient: the step is x - grad l / lam. Here lam = 2."""
    problem, x = softmax
    key_xi, key_y, key_f = random.split(key, 3)
    xi = problem.context(key_xi)
    train, test = problem.conditional(random.fold_in(key_y, 0), xi), problem.conditional(key_f, xi)
    centre = lambda x: {"W": x[0], "c": x[1]}
    train_loss = lambda x: problem.g(x, centre(x), train, xi)  # at y = x: the loss without its proximal term

    def loss(x):
        adapted = jax.tree.map(lambda a, b: a - b / 2, x, jax.grad(train_loss)(x))
        return problem.f(x, centre(adapted), test, xi)

    expected = jax.jit(jax.grad(loss))(x)
    est, _ = once(bx.maml(1, 0.5), key, problem, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), est.grad, expected)
