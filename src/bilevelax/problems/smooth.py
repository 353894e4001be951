"""The leading functions of a smooth product kernel: a basis for few or many coordinates that may interact."""

from __future__ import annotations

import heapq
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bilevelax.base.errors import require_integer
from bilevelax.problems.bases import MOST_FUNCTIONS, Basis, Features

MOST_WAVES = 24  # of one coordinate; the last has a size of 1/625


def sizes(waves: int) -> np.ndarray:
    """Of 1, u and cos(pi k u): 1, 1 and 1 / (k + 1)^2, the spectrum of a kernel with two derivatives."""
    return np.concatenate([[1.0, 1.0], 1.0 / np.arange(2, waves + 2) ** 2])


def leading(d: int, n: int, waves: int = MOST_WAVES) -> np.ndarray:
    """Which function of each coordinate the n largest products take, (n, d), largest first."""
    cost = -np.log(sizes(waves))
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, (0,) * d)]
    found: list[tuple[int, ...]] = []
    seen = {heap[0][1]}
    while heap and len(found) < n:
        found.append(heapq.heappop(heap)[1])
        for j, k in enumerate(found[-1]):
            more = (*found[-1][:j], k + 1, *found[-1][j + 1 :])
            if k + 1 < len(cost) and more not in seen:
                seen.add(more)
                heapq.heappush(heap, (float(np.round(cost[list(more)].sum(), 9)), more))
    return np.array(found, np.int32)


def products(z: Any, low: Any, width: Any, which: Any, xp: Any = jnp) -> Any:
    """The products at contexts z (..., d), each times its size; ``xp`` is numpy for tables in double precision.

    Beyond the range of the data waves stay as they are at its end and straight lines go on.
    """
    u = (z - low) / width
    last = (1,) * u.ndim + (-1,)
    k = xp.arange(1, MOST_WAVES + 1, dtype=u.dtype).reshape(last)
    waves = math.sqrt(2) * xp.cos(math.pi * k * xp.clip(u, 0, 1)[..., None])
    one = xp.concatenate([xp.ones_like(u)[..., None], (2 * u - 1)[..., None], waves], axis=-1)
    one = one * xp.asarray(sizes(MOST_WAVES), dtype=u.dtype).reshape(last)
    value = one[..., 0, which[:, 0]]
    for j in range(1, which.shape[1]):
        value = value * one[..., j, which[:, j]]
    return value


class SmoothProducts(eqx.Module):
    """The basis scaled to data."""

    low: jax.Array
    width: jax.Array
    which: jax.Array

    def __call__(self, z: jax.Array) -> jax.Array:
        made: jax.Array = products(z, self.low.astype(z.dtype), self.width.astype(z.dtype), self.which)
        return made


def smooth_products(n: int = 100) -> Basis:
    r"""The n leading functions of a smooth product kernel.

    .. math::
        \prod_j \big( 1 + u_j v_j + \sum_k 2 (k+1)^{-4} \cos \pi k u_j \cos \pi k v_j \big)

    Products of straight lines and waves of the coordinates, the smoothest first: main effects, then what interacts,
    as many as there is room for. Straight lines go on beyond the data.
    """
    require_integer("n", "smooth_products", n, 1, MOST_FUNCTIONS)

    def fit(Z: np.ndarray) -> Features:
        low, width = frame(Z)
        return SmoothProducts(jnp.asarray(low), jnp.asarray(width), jnp.asarray(leading(Z.shape[1], n)))

    return Basis(f"smooth_products({n})", fit, lambda: smooth_products(2 * n), redundant=True)


def frame(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least value of each coordinate and the width of its range."""
    width = np.ptp(Z, axis=0)
    return Z.min(axis=0), np.where(width > 0, width, 1.0)
