"""Followers with constraints: answers, faces, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from followers_on_sets import D_X, SETS, TARGET, A, B, D, H, points, problem_on, segment, wave
from jax import random

import bilevelax as bx
from bilevelax.base.compiling import program
from bilevelax.core.double_loop import DoubleLoop
from bilevelax.core.hypergradient import hypergradient
from bilevelax.diagnostics.check_constraint import constraint_rows
from bilevelax.diagnostics.part_errors import part_errors
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_on


def answers_of(problem):
    """(xs, xis) -> (gradients, costs, answers), stacked: one program for a problem."""

    def one(x, xi):
        average = of_stack(problem, x, xi, jnp.zeros((1, D)), jnp.ones(1), 1)
        response = respond_on(average, problem.start(x, xi), newton_solver(tol=1e-12), direct_or_cg())
        return response.grad, average.f(response.solution.y), response.solution.y

    return program()(jax.vmap(one))


def against_differences(problem, n=3, h=1e-6):
    """Gradients of n points, and their finite differences."""
    xs, xis = (jnp.stack(a) for a in points(n))
    steps = h * jnp.concatenate([jnp.zeros((1, D_X)), jnp.eye(D_X), -jnp.eye(D_X)])
    near = (xs[:, None] + steps[None]).reshape(-1, D_X)
    grads, costs, _ = answers_of(problem)(near, jnp.repeat(xis, len(steps), axis=0))
    costs = costs.reshape(n, -1)
    return grads.reshape(n, -1, D_X)[:, 0], (costs[:, 1 : D_X + 1] - costs[:, D_X + 1 :]) / (2 * h)


@pytest.mark.parametrize("name", SETS)
def test_gradients_are_finite_differences(name):
    np.testing.assert_allclose(*against_differences(problem_on(SETS[name](), 0.3)), rtol=1e-6, atol=1e-6)


def kkt(rows, bounds, target, x, xi):
    """NumPy: the answer on A y <= b by trying every set of active rows, and the gradient from its KKT system."""
    from itertools import chain, combinations

    m = len(bounds)
    for active in chain.from_iterable(combinations(range(m), k) for k in range(min(m, D) + 1)):
        J, k = rows[list(active)], len(active)
        system = np.block([[H, J.T], [J, np.zeros((k, k))]])
        right = np.concatenate([B @ x + xi, bounds[list(active)]])
        solution = np.linalg.solve(system, right)
        y, lam = solution[:D], solution[D:]
        if (rows @ y <= bounds + 1e-9).all() and (lam >= -1e-9).all():
            slope = y - target + np.cos(y) * x[0]
            r = np.linalg.solve(system, np.concatenate([slope, np.zeros(k)]))[:D]
            first = np.concatenate([[np.sin(y).sum()], np.zeros(D_X - 1)]) + x
            return y, first + B.T @ r, k
    raise AssertionError("no active set is right")


def test_polyhedra_against_kkt_systems_in_numpy():
    """With none to all of d_y rows active."""
    rng = np.random.default_rng(2)
    sizes = np.repeat([-4.0, -2.0, -1.0, 0.0, 3.0], 4)
    xs, xis = rng.normal(size=(len(sizes), D_X)), rng.normal(size=(len(sizes), D))
    xis[:, -1] = sizes
    problem = problem_on(bx.polyhedron(A, lambda x, xi: jnp.exp(xi[-1]) * jnp.ones(7)))
    grads, _, ys = answers_of(problem)(jnp.asarray(xs), jnp.asarray(xis))
    wanted = [kkt(A, np.full(7, np.exp(xi[-1])), TARGET, x, xi) for x, xi in zip(xs, xis, strict=True)]
    np.testing.assert_allclose(ys, [y for y, _, _ in wanted], atol=1e-9)
    np.testing.assert_allclose(grads, [grad for _, grad, _ in wanted], rtol=1e-7, atol=1e-7)
    assert {0, D} <= {active for *_, active in wanted}


@pytest.mark.parametrize(
    ("name", "projection"),
    [
        ("box", lambda z: jnp.clip(z, -0.3, 0.4)),
        ("nonnegative", optax.projections.projection_non_negative),
        ("simplex", optax.projections.projection_simplex),
        ("ball", lambda z: optax.projections.projection_l2_ball(z, 0.5)),
    ],
)
def test_nearest_points_are_those_of_optax(name, projection):
    constraint = SETS[name]()
    for seed in range(5):
        z = random.normal(random.key(seed), (D,))
        with jax.numpy_dtype_promotion("standard"):  # optax divides floats by integers
            wanted = projection(z)
        np.testing.assert_allclose(constraint.land(z, None, None)[0], wanted, atol=1e-12)


@pytest.mark.parametrize("name", SETS)
def test_nearest_points_satisfy_the_inequality_that_defines_them(name):
    """<z - P(z), u - P(z)> <= 0 for every u of the set, and P(u) = u: any closed convex set, no closed form needed."""
    constraint = SETS[name]()
    x, xi = jnp.ones(D_X), 0.3 * jnp.ones(D)
    land = program()(jax.vmap(lambda z: constraint.land(z, x, xi)[0]))
    zs = 2 * random.normal(random.key(0), (6, D))
    ys = land(zs)
    products = np.einsum("id,ijd->ij", zs - ys, ys[None] - ys[:, None])
    assert products.max() <= 1e-8
    np.testing.assert_allclose(land(ys), ys, atol=1e-8)


def test_a_polyhedron_and_the_box_that_it_is_agree():
    """Two solvers, one answer: semi-smooth Newton on the box, interior points on its 2 d rows."""
    rows = bx.polyhedron(np.concatenate([np.eye(D), -np.eye(D)]), np.repeat([0.4, 0.3], D))
    xs, xis = (jnp.stack(a) for a in points())
    first, second = (answers_of(problem_on(each, 0.3))(xs, xis) for each in (SETS["box"](), rows))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-8)


def test_smoothed_gradients_are_finite_differences_of_smoothed_answers():
    """With bounds that move and a row of equality."""
    rows = bx.polyhedron(A, lambda x, xi: 0.3 + 0.1 * wave(x, 7), equalities=1, smoothing=0.05)
    np.testing.assert_allclose(*against_differences(problem_on(rows, 0.3)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kappa", [1e-2, 1e-8])
def test_smoothing_has_a_derivative_at_a_kink_and_goes_away_with_kappa(kappa):
    """min (y - x)^2 / 2 - kappa log(1 - y): at x = 1, y = 1 - sqrt(kappa) and dy/dx = 1/2; at x = 2 it goes to 0."""
    problem = segment(bx.polyhedron(np.ones((1, 1)), np.ones(1), smoothing=kappa))

    def answer(x):
        average = of_stack(problem, x, jnp.zeros(1), jnp.zeros(1), jnp.ones(1), 1)
        return respond_on(average, jnp.zeros(1), newton_solver())

    found = program()(jax.vmap(answer))(jnp.array([[1.0], [2.0]]))
    assert bool(found.solution.solved.all())
    slack = 2 * kappa / (1 + np.sqrt(1 + 4 * kappa))  # (y - 2) (1 - y) + kappa = 0 below 1
    np.testing.assert_allclose(found.solution.y[:, 0], [1 - kappa**0.5, 1 - slack], atol=1e-8)
    np.testing.assert_allclose(found.grad[:, 0], [0.5, 1 / (1 + kappa / slack**2)], rtol=1e-5, atol=1e-9)
    assert found.grad[1, 0] < 2 * kappa  # without smoothing, 0


@pytest.mark.slow
def test_a_thousand_coordinates_and_constraints():
    """The KKT system of the active rows in NumPy: answer, gradient, and no row violated."""
    rng = np.random.default_rng(3)
    d = m = 1000
    root, rows = rng.normal(size=(d, d)) / d**0.5, rng.normal(size=(m, d)) / d**0.5
    Q, q, b = root @ root.T + 0.1 * np.eye(d), rng.normal(size=d), rng.uniform(0.1, 1.0, size=m)
    problem = segment(bx.polyhedron(rows, b)).replace(
        f=lambda x, y, eta, xi: jnp.sum(y**2) / 2,
        g=lambda x, y, eta, xi: y @ (jnp.asarray(Q) @ y) / 2 + x @ y,
        init_y=lambda x, xi: jnp.zeros(d),
    )

    def answer(x):
        return respond_on(
            of_stack(problem, x, jnp.zeros(1), jnp.zeros(1), jnp.ones(1), 1), jnp.zeros(d), newton_solver()
        )

    found = program()(answer)(jnp.asarray(q))
    y, grad = np.asarray(found.solution.y), np.asarray(found.grad)
    active = rows @ y - b > -1e-9
    J, k = rows[active], int(active.sum())
    assert bool(found.solution.solved) and 50 < k < m and (rows @ y - b).max() < 1e-9
    system = np.block([[Q, J.T], [J, np.zeros((k, k))]])
    both = np.linalg.solve(system, np.stack([np.append(-q, b[active]), np.append(y, np.zeros(k))], axis=1))
    np.testing.assert_allclose(y, both[:d, 0], atol=1e-8)
    np.testing.assert_allclose(grad, -both[:d, 1], atol=1e-8)
    assert both[d:, 0].min() > 0  # its multipliers are those of a minimum


def test_products_of_sets_over_a_tree():
    rows = bx.polyhedron(np.array([[1.0, 1.0], [-1.0, 2.0]]), lambda x, xi: 0.1 + 0.1 * wave(x, 2))
    parts = {"a": bx.box(-0.3, lambda x, xi: 0.3 + 0.1 * x[0] ** 2), "b": rows, "c": None}
    join = lambda y: jnp.concatenate([y["a"], y["b"], y["c"]])
    start = lambda x, xi: {"a": jnp.zeros(2), "b": jnp.zeros(2), "c": jnp.zeros(1)}
    problem = problem_on(bx.product(parts), 0.1, shape=join, init_y=start)
    np.testing.assert_allclose(*against_differences(problem), rtol=1e-6, atol=1e-6)


def test_dependent_active_constraints_leave_the_gradient_right():
    """The same half-space twice, and a third time scaled: multipliers are not unique, the answer is."""
    thrice = bx.polyhedron(np.concatenate([A, A, 2 * A]), np.concatenate([np.full(14, 0.3), np.full(7, 0.6)]))
    xs, xis = (jnp.stack(a) for a in points())
    first, second = (answers_of(problem_on(each))(xs, xis) for each in (SETS["polyhedron"](), thrice))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-7)


ESTIMATORS = {
    "saa": bx.saa(1),
    "antithetic": bx.antithetic_mlmc(1, levels=2),
    "dl_sgd": bx.dl_sgd(8, inverse=bx.dense(1)),
    "series": bx.dl_sgd(8, inverse=bx.summed_neumann(30)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_gradient_is_zero_where_the_answer_cannot_move(name):
    """Without the constraint it is 1 at both points: what `project` alone used to give."""
    estimator, problem = ESTIMATORS[name], segment()
    keys = random.split(random.key(1), 64)
    run = program()(jax.vmap(lambda x, key: estimator.estimate(key, problem, x, ())[0].grad, in_axes=(0, None)))
    means = np.mean([run(jnp.array([[2.0], [0.5]]), key) for key in keys], axis=0)
    np.testing.assert_allclose(means[:, 0], [0.0, 1.0], atol=0.05)


@pytest.mark.parametrize(
    "name",
    ["box that moves", "ball that moves"]
    + [
        pytest.param(name, marks=pytest.mark.slow) for name in SETS if name not in ("box that moves", "ball that moves")
    ],
)
def test_rt_mlmc_telescopes_to_dl_sgd_on_a_set(name, key):
    from bilevelax.estimators.rt_mlmc import at_level, level_probabilities

    problem, x = problem_on(SETS[name](), noise=0.5), points()[0][0]
    parts = dict(lower=bx.epoch_sgd(), inverse=bx.neumann(6))
    level = program()(lambda k, key, x: at_level(k, key, problem, x, K=4, **parts).grad)
    whole = sum(p * level(k, key, x) for k, p in enumerate(level_probabilities(4), 1))
    exact = program()(lambda key, x: bx.dl_sgd(4, **parts).estimate(key, problem, x, ())[0].grad)(key, x)
    np.testing.assert_allclose(whole, exact, rtol=1e-11, atol=1e-11)


def test_the_inverse_s_part_of_an_error_has_what_moving_bounds_add():
    """Without noise it is the estimate with a short series at y*, minus the exact gradient."""
    problem, inverse = problem_on(SETS["box that moves"]()), bx.summed_neumann(3)
    xs, xis = (jnp.stack(a) for a in points(2))
    x, loops = 0.1 * xs[0], DoubleLoop(3, inverse=inverse)  # there, some answers are held and some are not
    exact, _, ys = answers_of(problem)(jnp.stack([x, x]), xis)

    def at_answer(y, xi):
        z = y - problem.push * problem.grad_g(x, y, jnp.zeros(D), xi)
        return hypergradient(random.key(0), problem, x, z, xi, inverse)[0]

    estimates = program()(jax.vmap(at_answer))(ys, xis)
    found = part_errors(random.key(0), problem, x, xis, ys, loops).inverse.reshape(2, -1, D_X)
    assert np.abs(estimates - exact).max() > 1e-3
    np.testing.assert_allclose(found, np.repeat((estimates - exact)[:, None], found.shape[1], 1), atol=1e-9)


def test_check_tells_the_active_set():
    report = bx.check(problem_on(SETS["polyhedron"]()), points()[0][0], key=random.key(0), contexts=4, samples=64, n=64)
    told = {row.name: row for row in report.rows}
    for name in ("answers exist", "active", "strictly complementary", "independent"):
        assert told[f"constraint: {name}"].ok, report
    assert told["gradient against finite differences"].ok, report


def test_where_a_multiplier_and_its_slack_are_zero_one_side_is_given_and_rows_are_open():
    """x = 1 on [0, 1]: the left derivative is 1, the right one 0. At x = 2 nothing is open."""
    contexts, open_ = jnp.zeros((2, 1)), ("strictly complementary", "faces crossed by differences")
    for x, ok in ((1.0, None), (2.0, True)):
        rows = constraint_rows(random.key(0), segment(), jnp.full(1, x), contexts, jnp.ones((2, 1)))
        told = {row.name: row.ok for row in rows}
        assert [told[f"constraint: {name}"] for name in open_] == [ok, ok], rows
    grad = jax.jit(bx.saa(1).estimate)(random.key(0), segment(), jnp.ones(1), ())[0].grad
    assert float(grad[0]) in (0.0, 1.0)


def test_solve_stops_where_the_leader_s_bound_is_best():
    """f = (y - 2)^2 with y <= x^2 <= g's own wish: F is least where x^2 = 2, which only the moving bound can tell."""
    problem = segment(bx.box(0.0, lambda x, xi: x**2)).replace(
        f=lambda x, y, eta, xi: jnp.sum((y - 2) ** 2) / 2,
        g=lambda x, y, eta, xi: jnp.sum((y - 9) ** 2) / 2 + 0 * jnp.sum(x),
    )
    found = bx.solve(problem, jnp.ones(1), key=random.key(0), tol=1e-6)
    np.testing.assert_allclose(found.x, [2**0.5], atol=1e-4)


def test_check_names_the_context_whose_set_is_empty():
    problem = problem_on(bx.box(0.0, lambda x, xi: jnp.where(xi[0] > 0, 1.0, -1.0)))
    report = bx.check(problem, points()[0][0], key=random.key(0), contexts=8, samples=16, n=32)
    assert report.rows[-1].name == "constraint: answers exist" and report.rows[-1].ok is False
    assert "xi = " in report.rows[-1].value


def test_stored_problems_and_warm_starts_keep_the_constraint():
    """Bounds are functions of the context as it was given."""
    contexts = np.array([[0.5], [1.5]])
    problem = bx.from_arrays(
        lambda x, y, eta, xi: y[0],
        lambda x, y, eta, xi: jnp.sum((y - x) ** 2) / 2,
        contexts,
        np.zeros((2, 1)),
        init_y=lambda x, xi: jnp.zeros(1),
        constraint=bx.box(0.0, lambda x, xi: xi),
    )
    x = jnp.array([1.0])
    for estimator in (bx.saa("all"), bx.warm_started(bx.saa("all"))):
        whole = bx.minibatch(estimator, 2, contexts="spread")
        state, run = whole.init(problem, x), jax.jit(whole.estimate)
        for _ in range(2):
            estimate, state = run(random.key(0), problem, x, state)
            np.testing.assert_allclose(estimate.grad, [0.5])  # 0 where y <= 0.5, 1 where y <= 1.5
