"""What estimators with a row for each context share: drawn blocks, raised eigenvalues."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from bilevelax.estimators._blocks import at_least, few_of_many


def test_few_blocks_of_many_are_different_and_every_set_is_as_likely(key):
    """Floyd's algorithm: all 15 pairs of 6 come up, none more often than the others (5 standard errors)."""
    draws = 6000
    keys = jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(draws))
    pairs = np.sort(np.asarray(jax.vmap(lambda key: few_of_many(key, 6, 2))(keys)), axis=1)
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert np.all(pairs[:, 0] < pairs[:, 1]) and len(counts) == 15
    assert np.abs(counts - draws / 15).max() < 5 * np.sqrt(draws / 15)


def test_eigenvalues_are_raised_to_mu():
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    H = Q @ np.diag([-1.0, 0.5, 3.0]) @ Q.T
    np.testing.assert_allclose(at_least(jnp.asarray(H)[None], 1.0)[0], Q @ np.diag([1.0, 1.0, 3.0]) @ Q.T, atol=1e-12)
