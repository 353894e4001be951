"""saa: the exact hypergradient of the problem on n samples."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.applications.quadratic import matrices, problem_of
from bilevelax.diagnostics.constants import _measure
from bilevelax.newton import cg, direct, newton, solve_positive
from bilevelax.sample_average import newton_solver
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


@pytest.fixture(scope="module")
def logistic():
    """Contexts with 5, 8 and 3 stored outcomes; f and g are smooth and not quadratic."""
    rng = np.random.default_rng(1)
    outcomes = [rng.normal(size=(n, 3)) for n in (5, 8, 3)]

    def g(x, y, eta, xi):
        return jax.nn.softplus(eta @ y + xi @ x) + jnp.sum((y - x[:3]) ** 2) / 2

    def f(x, y, eta, xi):
        return jax.nn.softplus(-eta @ y) + jnp.sum(jnp.cos(y) * x[:3]) + jnp.sum(x**2) / 8

    contexts = rng.normal(size=(3, 4))
    return bx.from_arrays(f, g, contexts, outcomes, init_y=lambda x, xi: jnp.zeros(3, x.dtype), mu_g=1.0)


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


def test_damped_newton_where_newton_diverges():
    """A smoothed absolute value: the full Newton step from 3 lands beyond -90, and the next one farther still."""
    grad = lambda y: jnp.tanh(y)
    hessian = lambda y: lambda r: r / jnp.cosh(y) ** 2
    assert 3.0 - np.tanh(3.0) * np.cosh(3.0) ** 2 < -90
    found = newton(grad, hessian, jnp.asarray([3.0]), iterations=50, linear=direct(), tol=1e-12)
    np.testing.assert_allclose(found.y, 0, atol=1e-11)


def test_elimination_solves(key):
    key_A, key_b = random.split(key)
    root, b = random.normal(key_A, (7, 5, 9)), random.normal(key_b, (7, 5))
    A = root @ root.mT
    found = jax.vmap(solve_positive)(A, b)
    assert np.allclose(np.einsum("nij,nj->ni", A, found), b, rtol=1e-9, atol=1e-9)


PROGRAMS = {
    "saa": bx.saa(8).estimate,
    "antithetic_mlmc": bx.antithetic_mlmc(4, 2).estimate,
    "dense": bx.dl_sgd(K=2, inverse=bx.dense(8)).estimate,
    "constants": lambda key, problem, x, state: _measure(key, problem, x, 4, 8),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_thread_waits_for_a_thread(quadratic, x, key, name):
    """Batched LAPACK calls wait for threads of the pool they run on: two at once stop a machine of two cores."""
    program = jax.jit(jax.vmap(lambda key: PROGRAMS[name](key, quadratic, x, ())))
    assert "lapack" not in program.lower(random.split(key, 64)).as_text()


def test_the_search_for_lapack_can_find_it(key):
    solve = jax.jit(jax.vmap(lambda A: jnp.linalg.solve(A, jnp.ones(3))))
    assert "lapack" in solve.lower(random.normal(key, (64, 3, 3))).as_text()


def test_cg_counts_its_products():
    """d distinct eigenvalues take d products; a zero right-hand side takes none."""
    matrix = jnp.diag(jnp.asarray([1.0, 2.0, 5.0]))
    solution, products = cg(tol=1e-12)(lambda r: matrix @ r, jnp.ones(3))
    np.testing.assert_allclose(solution, [1, 0.5, 0.2], rtol=1e-12)
    assert int(products) == 3
    solution, products = cg()(lambda r: matrix @ r, jnp.zeros(3))
    assert int(products) == 0 and not np.any(solution)


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


@pytest.mark.parametrize("make", [lambda: bx.saa("all"), lambda: bx.antithetic_mlmc(4, levels=3)])
def test_a_table_changes_the_cost_only(make, logistic, key):
    """Gradients and levels are those of cold starts; from its own answers there is less left to do."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    warm = bx.warm_started(bx.minibatch(make(), 16))
    run = jax.jit(lambda table: warm.estimate(key, logistic, x, table))
    cold = warm.init(logistic, x)
    (first, table), (far, _), (broken, _) = run(cold), run(cold + 5.0), run(cold * jnp.nan)
    again, _ = run(table)
    for other in (far, again, broken):
        np.testing.assert_allclose(other.grad, first.grad, rtol=1e-7)
    assert int(again.cost.grad_g) < int(first.cost.grad_g) == int(broken.cost.grad_g) == int(far.cost.grad_g)
    assert jnp.any(table != cold) and jnp.isfinite(table).all()
    check_estimator(warm, logistic, x, key=key)


def test_a_warm_start_from_nothing_is_a_cold_one(logistic, key):
    """The guess enters at one place: with the guess at init_y, all but one gradient of each context is the same."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    same = dataclasses.replace(logistic, guess=lambda x, xi, data: logistic.start(x, xi))
    batch = bx.minibatch(bx.saa(8), 4)
    (cold, _), (warm, _) = (batch.estimate(key, problem, x, ()) for problem in (logistic, same))
    np.testing.assert_allclose(warm.grad, cold.grad, rtol=1e-12)
    assert warm.cost == dataclasses.replace(cold.cost, grad_g=cold.cost.grad_g + 4 * 8)


def test_a_regression_learns_the_answers(quadratic, x, key):
    """y* of the quadratic is affine in xi: after one batch every new context starts at its answer."""
    batch = bx.minibatch(bx.saa(64), 32)
    warm = bx.warm_started(batch)
    run = jax.jit(lambda key, fit: warm.estimate(key, quadratic, x, fit))
    fit = warm.init(quadratic, x)
    _, fit = run(key, fit)
    xis = jax.vmap(quadratic.context)(random.split(random.key(5), 50))
    starts = jax.vmap(lambda xi: quadratic.start(x, xi))(xis)
    guesses = jax.vmap(bx.warm_regression().recall, in_axes=(None, 0, 0))(fit, xis, starts)
    answers = jax.vmap(lambda xi: bx.respond(quadratic, x, xi, key=key, n=64))(xis)
    assert jnp.linalg.norm(guesses - answers) < 0.2 * jnp.linalg.norm(starts - answers)
    other = random.key(9)
    np.testing.assert_allclose(run(other, fit)[0].grad, batch.estimate(other, quadratic, x, ())[0].grad, rtol=1e-7)


def test_a_regression_forgets(quadratic, x, key):
    """Discounted normal equations: two visits with forgetting w give w A_1 + A_2."""
    memory = bx.warm_regression(features=lambda xi: xi, forgetting=0.5, ridge=1e-12)
    fit = memory.init(quadratic, x)
    xis, ys = random.normal(key, (2, 6, 2)), random.normal(random.fold_in(key, 1), (2, 6, 4))
    for one, y in zip(xis, ys, strict=True):
        fit = memory.learn(fit, one, y, jnp.zeros_like(y))
    weights = jnp.repeat(jnp.array([0.5, 1.0]), 6)[:, None] ** 0.5
    expected = jnp.linalg.lstsq(weights * xis.reshape(12, 2), weights * ys.reshape(12, 4))[0]
    np.testing.assert_allclose(fit.weights, expected, rtol=1e-8)


def test_a_table_needs_numbered_contexts(quadratic, x):
    with pytest.raises(ValueError, match="warm_table needs finitely many contexts"):
        bx.warm_started(bx.saa(4), bx.warm_table()).init(quadratic, x)


def test_a_warm_start_needs_solves(quadratic, x, key):
    warm = bx.warm_started(bx.maml(m=1, gamma=0.1))
    with pytest.raises(ValueError, match="must solve the lower level"):
        warm.estimate(key, quadratic, x, warm.init(quadratic, x))


@pytest.mark.parametrize("tol", [1e-12, 1e-2])
def test_a_warm_start_keeps_the_tolerance_of_the_solver(logistic, key, tol):
    """Relative to the gradient at init_y, wherever the solve starts."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    estimate = jax.jit(lambda problem: bx.saa("all", newton_solver(tol=tol)).estimate(key, problem, x, ())[0])
    xi = logistic.context(random.split(key)[0])
    first = jnp.linalg.norm(logistic.weighted().grad_g(x, logistic.start(x, xi), logistic.outcomes(xi), xi))
    best = bx.respond(logistic, x, xi, key=key)
    near = dataclasses.replace(logistic, guess=lambda x, xi, data: best + 1e-4)
    cold, warm = estimate(logistic), estimate(near)
    for found in (cold, warm):
        assert float(found.aux["lower_grad_norm"]) <= tol * float(first)
    assert int(warm.aux["newton_steps"]) == (0 if tol == 1e-2 else 2) < int(cold.aux["newton_steps"])


def test_a_bad_guess_is_not_taken(logistic, key):
    """It costs its gradient, and nothing else changes."""
    x = jnp.asarray([0.3, -0.5, 0.8, 0.2])
    far = dataclasses.replace(logistic, guess=lambda x, xi, data: jnp.full(3, 1e3))
    (cold, _), (warm, _) = (bx.saa(8).estimate(key, problem, x, ()) for problem in (logistic, far))
    np.testing.assert_array_equal(warm.grad, cold.grad)
    assert warm.cost == dataclasses.replace(cold.cost, grad_g=cold.cost.grad_g + 8)


def test_a_regression_reads_sizes_not_numbers(quadratic, x, key):
    """Integers in a context are ids: ten million of them squared would drown the rest."""
    memory = bx.warm_regression()
    numbered = dataclasses.replace(
        quadratic,
        sample_context=lambda key, data: {"id": jnp.int32(10**7), "value": quadratic.context(key)},
        init_y=lambda x, xi: quadratic.init_y(x, xi["value"]),
    )
    assert memory.init(numbered, x).weights.shape == memory.init(quadratic, x).weights.shape == (6, 4)
    only = dataclasses.replace(
        quadratic, sample_context=lambda key, data: jnp.int32(3), init_y=lambda x, xi: jnp.zeros(4)
    )
    assert memory.init(only, x).weights.shape == (1, 4)


def test_a_regression_refuses_large_contexts(quadratic, x):
    images = dataclasses.replace(
        quadratic, sample_context=lambda key, data: jnp.zeros((64, 64)), init_y=lambda x, xi: jnp.zeros(4)
    )
    with pytest.raises(ValueError, match=r"at most 2048\. This context has 4097; give `features`"):
        bx.warm_regression().init(images, x)
