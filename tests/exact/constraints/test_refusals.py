"""Sets, contexts and settings that followers with constraints refuse, in one sentence each."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from followers_on_sets import D, points, problem_on, segment
from jax import random

import bilevelax as bx


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bx.box(1.0, 0.0), "`lower` of box must not exceed `upper`"),
        (lambda: bx.box(np.nan), "`lower` of box must not be NaN"),
        (lambda: bx.box("a"), "`lower` of box must be numbers"),
        (lambda: bx.box(lambda x: x), r"`lower` of box is called as lower\(x, xi\)"),
        (lambda: bx.simplex(-1.0), "`total` of simplex must be a positive number"),
        (lambda: bx.ball(0.0), "`radius` of ball must be a positive number"),
        (lambda: bx.affine(np.ones((2, 3)), 1.0), "`A` of affine must have independent rows"),
        (lambda: bx.affine(np.ones(3), 1.0), "`A` of affine must be a matrix"),
        (lambda: bx.polyhedron(np.ones(3), 1.0), "`A` of polyhedron must be a matrix"),
        (lambda: bx.polyhedron(np.ones((2, 3)), np.ones(3)), "`b` of polyhedron must have one entry for each of the 2"),
        (lambda: bx.polyhedron(np.ones((2, 3)), 1.0, equalities=3), "`equalities` of polyhedron must not exceed"),
        (lambda: bx.polyhedron(np.ones((2, 3)), 1.0, smoothing=-1.0), "`smoothing` of polyhedron must be"),
        (lambda: bx.product({"a": 1.0}), "`sets` of product must be a tree of sets"),
        (lambda: bx.epoch_sgd(project=lambda y: y), "`project` of epoch_sgd would leave the gradient wrong"),
    ],
)
def test_bad_sets_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (bx.box(np.zeros(3)), "`lower` of box must fit y"),
        (bx.box({"a": np.zeros(D)}, {"b": np.ones(D)}), "must be one number or have the structure of y"),
        (bx.polyhedron(np.ones((2, 3)), 1.0), "`A` of polyhedron must have one column for each of the 5 coordinates"),
        (bx.affine(np.eye(D), lambda x, xi: jnp.ones(2)), "`b` of affine must have one entry for each of the 5 rows"),
        (bx.simplex(lambda x, xi: x), "`total` of simplex must be one number"),
        (bx.product([None, bx.ball()]), "`sets` of product must have the structure of y"),
        (3.0, "`constraint` of Problem must be a set"),
    ],
)
def test_sets_that_do_not_fit_are_refused(constraint, message):
    with pytest.raises(ValueError, match=message):
        bx.respond(problem_on(constraint), points()[0][0], points()[1][0], key=random.key(0), n=1)


def test_respond_names_the_context_without_an_answer():
    x, xi = points()[0][0], points()[1][0]
    empty = [
        bx.box(0.0, lambda x, xi: -1.0),
        bx.polyhedron(np.array([[1.0], [-1.0]]) * np.ones((2, D)), np.array([-1.0, -1.0])),
    ]
    for constraint in empty:
        with pytest.raises(ValueError, match=r"respond found no y in the problem's `constraint`.*xi = "):
            bx.respond(problem_on(constraint), x, xi, key=random.key(0), n=1)


def test_evaluate_names_a_context_without_an_answer():
    """One whose set is empty; one where g falls for ever along a ray of the set. A feasible one has a cost."""
    x, some = points()[0][0], bx.box(0.0, lambda x, xi: jnp.where(xi[0] > 0, 1.0, -1.0))
    with pytest.raises(ValueError, match=r"evaluate found no y in the problem's `constraint`.*xi = "):
        bx.evaluate(problem_on(some), x, key=random.key(0), n=8, samples=2)
    line = segment(bx.nonnegative()).replace(g=lambda x, y, eta, xi: -jnp.sum(y) + 0 * jnp.sum(x))
    with pytest.raises(ValueError, match=r"evaluate found no (minimum|y).*xi = "):
        bx.evaluate(line, jnp.ones(1), key=random.key(0), n=2, samples=2)
    assert bx.evaluate(segment(), jnp.full(1, 2.0), key=random.key(0), n=2, samples=2).mean == 1.0


def test_bounds_that_move_need_an_inverse():
    """f = -g has no implicit term on a set that stays (Danskin); on one that moves, its multipliers are missing."""
    danskin = lambda constraint: segment(constraint).replace(f=lambda x, y, eta, xi: -jnp.sum((y - x) ** 2) / 2)
    x, moving = jnp.full(1, 2.0), bx.box(0.0, lambda x, xi: x / 2)
    run = lambda estimator, problem: jax.jit(estimator.estimate)(random.key(0), problem, x, ())[0]
    for estimator in (bx.dl_sgd(3, inverse=bx.none()), bx.rt_mlmc(3, inverse=bx.none())):
        for constraint in (moving, bx.product(moving)):
            with pytest.raises(ValueError, match=r"must not be none\(\) where the problem's `constraint` moves with x"):
                run(estimator, danskin(constraint))
    stays = run(bx.dl_sgd(3, inverse=bx.none()), danskin(bx.box(0.0, 1.0)))
    np.testing.assert_allclose(stays.grad, [-1.0])  # y* = 1: d/dx of -(1 - x)^2 / 2
    moves = run(bx.dl_sgd(3, inverse=bx.dense(1)), danskin(moving))
    np.testing.assert_allclose(moves.grad, [-0.5])  # y* = x / 2: d/dx of -x^2 / 8, not -1


def test_projected_steps_have_no_smoothing():
    rows = bx.polyhedron(np.ones((1, 1)), np.ones(1), smoothing=0.1)
    with pytest.raises(ValueError, match="`smoothing` of polyhedron is for answers that are solved"):
        jax.eval_shape(lambda x: bx.dl_sgd(2).estimate(random.key(0), segment(rows), x, ())[0].grad, jnp.ones(1))


@pytest.mark.parametrize("name", ["maml", "imaml", "envelope", "bsvrb", "single_loop", "amortised"])
def test_estimators_that_ignore_constraints_refuse_them(name):
    estimator = getattr(bx, name)()
    problem = segment(n_contexts=1, context_at=lambda i, data: jnp.zeros(1))
    with pytest.raises(ValueError, match=f"{name} ignores the problem's `constraint`"):
        estimator.estimate(random.key(0), problem, jnp.ones(1), estimator.init(problem, jnp.ones(1)))


def test_lower_solvers_that_ignore_constraints_refuse_them():
    for solver in (bx.frozen(), bx.averaged_step(), bx.optax_steps(optax.sgd(0.1), 3)):
        with pytest.raises(ValueError, match="This lower solver ignores the problem's `constraint`"):
            bx.dl_sgd(2, solver, bx.dense(1)).estimate(random.key(0), segment(), jnp.ones(1), ())


def test_reduced_refuses_a_constraint():
    with pytest.raises(ValueError, match="reduced ignores the problem's `constraint`"):
        bx.reduced(segment(), lambda xi: xi)
