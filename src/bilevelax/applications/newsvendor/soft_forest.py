r"""A soft regression forest: trees of oblique soft splits, a rule that sees directions no axis shows.

.. math::
    \pi(z) = c + \frac1M \sum_m \sum_{\text{leaves } l} p_{ml}(z) \, \theta_{ml}, \qquad
    p_{ml}(z) = \prod_{\text{nodes } i \text{ above } l} \sigma(\pm (a_{mi}^T z + b_{mi}))
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random

from bilevelax.applications.newsvendor.stored_rules import TREES, depth_of
from bilevelax.core.problem import Key


class SoftForest(eqx.Module):
    """Trees of one depth; nodes are numbered level by level, from the root."""

    slopes: jax.Array  # (columns, trees, nodes): a
    offsets: jax.Array  # (trees, nodes): b
    leaves: jax.Array  # (trees, leaves, outputs): theta
    constant: jax.Array  # (outputs,): c

    def __call__(self, z: jax.Array) -> jax.Array:
        share = self.shares(z)
        return self.constant + jnp.einsum("tl,tlo->o", share, self.leaves) / share.shape[0]

    def shares(self, z: jax.Array) -> jax.Array:
        """p (trees, leaves): how much of z each leaf gets; each line sums to one."""
        trees, nodes = self.offsets.shape
        left = jax.nn.sigmoid(jnp.tensordot(z, self.slopes, 1) + self.offsets)
        share = jnp.ones((trees, 1), left.dtype)
        for level in range((nodes + 1).bit_length() - 1):
            here = left[:, 2**level - 1 : 2 ** (level + 1) - 1]
            share = jnp.stack([share * here, share * (1 - here)], axis=-1).reshape(trees, -1)
        return share


def soft_forest(columns: int, outputs: int, key: Key, trees: int = TREES, depth: int | None = None) -> SoftForest:
    """Random oblique splits, leaves near the mean demand; by default as many levels as `depth_of` says."""
    depth = depth_of(columns) if depth is None else depth
    key_a, key_b, key_l = random.split(key, 3)
    nodes = 2**depth - 1
    return SoftForest(
        2 * random.normal(key_a, (columns, trees, nodes), float) / math.sqrt(columns),
        random.normal(key_b, (trees, nodes), float),
        0.1 * random.normal(key_l, (trees, nodes + 1, outputs), float),
        jnp.zeros(outputs, float),
    )
