"""The reference that everything is held against, its contexts, and its scale where terms vanish."""

import jax
import jax.numpy as jnp
import numpy as np
from diagnosed import SMALL, pull
from jax import random

import bilevelax as bx
from bilevelax.diagnostics.contexts import only_contexts
from bilevelax.diagnostics.reference import reference


def test_reference_is_the_exact_gradient_of_each_context(quadratic, matrices, x, key):
    found = reference(key, quadratic, x, contexts=4, samples=512)
    J, G = np.linalg.solve(matrices.A, matrices.B), np.linalg.solve(matrices.A, matrices.C)
    for xi, grad, noise in zip(np.asarray(found.contexts), found.grads, found.noise, strict=True):
        y = J @ np.asarray(x) + G @ xi
        r = y - matrices.q - matrices.R @ xi + matrices.S.T @ np.asarray(x)
        exact = matrices.S @ y + matrices.rho * np.asarray(x) + J.T @ r
        assert np.linalg.norm(grad - exact) < 6 * np.linalg.norm(noise) + 0.05
    assert found.lower_error < 1e-8


def test_only_contexts_draws_nothing_else(quadratic, x, key):
    contexts = random.normal(key, (3, 2))
    few = only_contexts(quadratic, contexts)
    drawn = jax.vmap(few.context)(random.split(key, 50))
    distances = jnp.abs(drawn[:, None] - contexts[None]).sum(-1)
    assert (distances.min(1) == 0).all() and len(set(np.asarray(distances.argmin(1)).tolist())) == 3
    np.testing.assert_array_equal(few.conditional(key, contexts[0]), quadratic.conditional(key, contexts[0]))
    assert only_contexts(few, contexts) is few


def test_terms_that_vanish_leave_rows_open(key):
    """f is at its own minimum where the gradient is zero: nothing to be relative to."""
    at = jnp.ones(2)
    assert reference(key, pull(), at, 4, 2).scale == 0 and reference(key, pull(), at + 1e-3, 4, 2).scale > 1e-4
    named = {"dl": bx.dl_sgd(8, inverse=bx.conjugate_gradient(1, 2)), "saa": bx.saa(2)}
    report = bx.check(pull(), at, key=key, estimator=named, **SMALL)
    rows = {row.name: row for row in report.rows}
    assert report.ok, str(report)
    for name in ("gradient against finite differences", "saa: gradient", "dl: gradient", "dl: lower level at K = 8"):
        assert rows[name].ok is None and "vanish at this x: check at another" in rows[name].remedy, name
    assert "undecided" in report.verdict


def test_the_implicit_term_has_a_size_where_it_is_zero(key):
    """y has a coordinate that x does not move: r is (0, 0, -1) at the optimum, and g12 r zero."""
    found = reference(key, pull(2, 3), jnp.ones(2), 4, 2)
    np.testing.assert_allclose(found.grad, 0, atol=1e-10)
    assert 0.1 < found.scale <= 1.0
    report = bx.check(pull(2, 3), jnp.ones(2), key=key, estimator=bx.saa(2), **SMALL)
    assert report.ok and {row.ok for row in report.rows} == {True}, str(report)
