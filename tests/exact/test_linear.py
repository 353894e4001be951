"""Linear systems by elimination and by conjugate gradients, and no LAPACK in compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import bilevelax as bx
from bilevelax.diagnostics.constants import _matrices
from bilevelax.diagnostics.solved import _solved
from bilevelax.exact.linear import cg, solve_positive


def test_elimination_solves(key):
    key_A, key_b = random.split(key)
    root, b = random.normal(key_A, (7, 5, 9)), random.normal(key_b, (7, 5))
    A = root @ root.mT
    found = jax.vmap(solve_positive)(A, b)
    assert np.allclose(np.einsum("nij,nj->ni", A, found), b, rtol=1e-9, atol=1e-9)


FIRST = jnp.zeros(1, jnp.int32)
PROGRAMS = {
    "saa": bx.saa(8).estimate,
    "antithetic_mlmc": bx.antithetic_mlmc(4, 2, 0.1, factor=2).estimate,
    "dense": bx.dl_sgd(K=2, inverse=bx.dense(8)).estimate,
    "solved": lambda key, problem, x, state: _solved(key, problem, x, (FIRST, FIRST), False, 8),
    "constants": lambda key, problem, x, state: _matrices(key, problem, x, (FIRST, *2 * [jnp.zeros((1, 4))]), False, 8),
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
