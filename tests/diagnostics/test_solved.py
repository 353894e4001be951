"""The one program behind constants, references and finite differences: the numbers of separate ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random
from optax import tree

from bilevelax.diagnostics import host
from bilevelax.diagnostics.constants import _matrices, constants
from bilevelax.diagnostics.part_errors import finite_differences
from bilevelax.diagnostics.reference import reference
from bilevelax.diagnostics.solved import FIRST_HALF, MOVE, SECOND_HALF, WHOLE, solved, unit, units
from bilevelax.exact.curvature import extreme_curvatures, ritz_matrix
from bilevelax.exact.linear import direct_or_cg
from bilevelax.exact.sample_average import newton_solver, of_stack, respond_on, tightest
from bilevelax.testing.adversarial.case import plain

PARTS = (WHOLE, FIRST_HALF, SECOND_HALF)
SAMPLES, CONTEXTS = 6, 3
ROWS = {WHOLE: (0, 6), FIRST_HALF: (0, 3), SECOND_HALF: (3, 3)}  # the first one, and how many


@partial(jax.jit, static_argnames="n")
def separately(key, problem, x, i, first, n):
    """One context of `solved`, step by step and without a stack of anything."""
    xi = problem.context(random.fold_in(key, i))
    key_eta, key_u = (random.fold_in(random.fold_in(key, i), role) for role in (1, 2))
    drawn = problem.conditionals(key_eta, xi, SAMPLES)
    etas = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, n), drawn)
    average = lambda x: of_stack(problem, x, xi, etas, jnp.full(n, 1 / n), n)
    start = problem.start(x, xi)
    response = respond_on(average(x), start, newton_solver(tol=tightest(start)), direct_or_cg())
    y = response.solution.y
    u_x, u_y = (unit(k, like) for k, like in zip(random.split(key_u), (x, y), strict=True))
    own = units(y, start)
    u_own = tree.mul(own, u_y)
    near = tree.add_scale(x, MOVE * (1 + tree.norm(x)), u_x), tree.add_scale(y, MOVE * tree.size(y) ** 0.5, u_own)
    square = partial(tree.norm, squared=True)

    def size(grad_x, grad_y):
        r, _ = direct_or_cg()(average(x).hess_g(y), grad_y)
        cross = lambda r: square(average(x).cross_g(y, r))
        least = jnp.minimum(square(r) * cross(u_y), square(tree.div(r, own)) * cross(u_own))
        return square(grad_x) + jnp.maximum(cross(r), least)

    terms = size(*average(x).grad_f(y)), size(*average(near[0]).grad_f(near[1]))
    return xi, y, average(x).f(y), response.grad, *terms


@pytest.fixture(scope="module")
def both(softmax):
    problem, x = softmax
    key = random.key(3)
    together = solved(key, problem, x, CONTEXTS, SAMPLES, PARTS)
    apart = [separately(key, problem, x, i, *ROWS[part]) for part in PARTS for i in range(CONTEXTS)]
    return together, jax.tree.map(lambda *a: np.stack(a), *apart)


@pytest.mark.parametrize("field", range(6))
def test_one_program_gives_the_numbers_of_separate_ones(both, field):
    together, apart = both
    assert len(jax.tree.leaves(together)[0]) == len(PARTS) * CONTEXTS
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-11), together[field], apart[field])
    assert together.left.max() < 1e-12


def test_answers_alone_are_those_of_the_whole_program(both, softmax):
    problem, x = softmax
    only = solved(random.key(3), problem, x, CONTEXTS, SAMPLES, PARTS, answers_only=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), only.y, both[0].y)
    assert only.grad is None and only.cost is None


def test_a_reference_is_made_of_its_parts(both, softmax):
    """2 whole - the mean of the halves, and half their difference as a draw of the error."""
    problem, x = softmax
    whole, first, second = np.split(host.flat_rows(both[1][3]), 3)
    found = reference(random.key(3), problem, x, CONTEXTS, SAMPLES)
    np.testing.assert_allclose(found.grads, 2 * whole - (first + second) / 2, rtol=1e-6, atol=1e-11)
    np.testing.assert_allclose(found.noise, (first - second) / 2, rtol=1e-6, atol=1e-11)


def test_finite_differences_see_a_wrong_gradient(softmax):
    """Of the contexts of a reference: right to rounding, and not so with another f in the cost alone."""
    problem, x = softmax
    error, tol, *_ = finite_differences(random.key(3), problem, x, CONTEXTS, SAMPLES)
    assert error < 1e-7 < tol

    @jax.custom_jvp
    def wrong(z):
        return z

    wrong.defjvp(lambda primals, tangents: (primals[0], 1.1 * tangents[0]))
    bent = problem.replace(f=lambda x, y, eta, xi: wrong(problem.f(x, y, eta, xi)))
    assert finite_differences(random.key(3), bent, x, CONTEXTS, SAMPLES)[0] > 1e-3


def test_units_of_y_change_little_in_the_size_of_the_terms():
    """y in other units, by factors of 1e-6 and 1e6: with r's length as given the terms were 1e24 times as large."""

    def terms(units):
        units = jnp.asarray(units)
        problem = plain(
            f=lambda x, y, eta, xi: jnp.sum((y / units - xi) ** 2) / 2,
            g=lambda x, y, eta, xi: jnp.sum((y / units - x - eta) ** 2) / 2,
            init_y=lambda x, xi: 0.3 * units,
        )
        found = solved(random.key(3), problem, jnp.ones(2), CONTEXTS, SAMPLES)
        return np.stack([found.terms, found.around])

    ratio = terms([1e-6, 1e6]) / terms([1.0, 1.0])
    assert ratio.min() > 0.1 and ratio.max() < 10


@pytest.mark.parametrize("n", [1, 3, 8, 9, 20])
def test_groups_of_lanes_are_all_lanes(n):
    """One shape for any number of them, in their order, with nothing added."""
    shapes = set()

    def program(lanes):
        shapes.add(lanes.shape)
        return 2 * jnp.asarray(lanes), random.split(random.key(0), len(lanes))

    doubled, keys = host.in_groups(program, np.arange(n), n)
    np.testing.assert_array_equal(doubled, 2 * np.arange(n))
    assert shapes == {(min(n, host.AT_ONCE),)} and keys.shape == (n,)


def test_vectors_and_trees_are_each_other(softmax):
    _, x = softmax
    back = host.unflat(host.flat(x), x)
    jax.tree.map(np.testing.assert_array_equal, back, x)
    assert [a.dtype for a in jax.tree.leaves(back)] == [a.dtype for a in jax.tree.leaves(x)]


@pytest.mark.parametrize("steps", [15, 6])
def test_matrices_for_the_host_have_the_eigenvalues_found_inside(softmax, key, steps):
    """d_y = 15: the Hessian itself, and the Lanczos matrix of fewer steps."""
    problem, x = softmax

    @jax.jit
    def both_ways():
        xi = problem.context(key)
        y = problem.start(x, xi)
        hessian = problem.linear_hess_g(x, y, problem.conditional(key, xi), xi)
        return extreme_curvatures(hessian, y, key, steps), ritz_matrix(hessian, y, key, steps)

    inside, matrix = both_ways()
    on_host = np.linalg.eigvalsh(matrix)
    np.testing.assert_allclose(on_host[[0, -1]], inside, rtol=1e-6)
    assert on_host.shape == (steps,)


def test_constants_look_at_the_solution(softmax, key):
    """The middle of the first three points is y*: its mean Hessian is that of the samples there."""
    problem, x = softmax
    found = solved(key, problem, x, 1, SAMPLES)
    mean, single = _matrices(key, problem, x, (np.zeros(1, np.int32), found.y, found.y), False, SAMPLES)

    @jax.jit
    def wanted(xi, y):
        etas = problem.conditionals(random.fold_in(random.fold_in(key, 0), 1), xi, SAMPLES)
        average = of_stack(problem, x, xi, etas, jnp.full(SAMPLES, 1 / SAMPLES), SAMPLES)
        return ritz_matrix(average.hess_g(y), y, key, 32)

    first = jax.tree.map(lambda a: a[0], (found.xi, found.y))
    np.testing.assert_allclose(mean[0, 1, 0], wanted(*first), rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(np.mean(single[0, 1], 0), mean[0, 1, 0], rtol=1e-8, atol=1e-11)
    measured = constants(problem, x, key=key, contexts=1, samples=SAMPLES)
    every = np.linalg.eigvalsh(np.asarray(mean)[0, :3, 0])
    assert measured.mu_g == pytest.approx(every.min(), rel=1e-9)
