"""Functions Phi of a context that `reduced` writes the follower's answer in: y(xi) = y_1^0 + W Phi(xi)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from bilevelax.base.errors import require_integer, require_key, require_positive
from bilevelax.core.problem import Key, Xi

MOST_FUNCTIONS = 4096
LEAST_EIGENVALUE = 1e-6  # of E Phi Phi^T at unit mean squares; below it single precision does not determine W
Features = Callable[[jax.Array], jax.Array]  # coordinates of a context (d,) -> functions (N,)


class Basis(NamedTuple):
    """``fit(Z) -> Phi`` scales the functions to contexts Z (n, d); ``twice()`` is a basis with about twice as many.

    Functions of a ``redundant`` basis nearly depend on each other by their nature; what they span is kept.
    """

    name: str
    fit: Callable[[np.ndarray], Features]
    twice: Callable[[], Basis] | None = None
    redundant: bool = False


def coordinates(xi: Xi) -> jax.Array:
    """The floating-point numbers of a context as one vector. Integers are numbers of rows, not sizes."""
    floats = [a.astype(float) for a in map(jnp.asarray, jax.tree.leaves(xi)) if jnp.issubdtype(a.dtype, jnp.floating)]
    flat: jax.Array = ravel_pytree(floats)[0]
    return flat


class Interval(eqx.Module):
    """Coordinates brought from the range of the data to [-1, 1]; beyond it they stay at its end."""

    low: jax.Array
    width: jax.Array

    def __call__(self, z: jax.Array) -> jax.Array:
        return jnp.clip(2 * (z - self.low) / self.width - 1, -1, 1)


def interval(Z: np.ndarray) -> Interval:
    low, width = Z.min(axis=0), np.ptp(Z, axis=0)
    return Interval(jnp.asarray(low), jnp.asarray(np.where(width > 0, width, 1.0)))


class Products(eqx.Module):
    """Products over the coordinates of functions of one coordinate."""

    inside: Interval
    which: jax.Array  # (N, d): the function of each coordinate in each product
    of_one: Callable[[jax.Array], jax.Array] = eqx.field(static=True)  # z -> all functions of one coordinate

    def __call__(self, z: jax.Array) -> jax.Array:
        table = jax.vmap(self.of_one)(self.inside(z))
        return jnp.prod(table[jnp.arange(len(z), dtype=jnp.int32)[None, :], self.which], axis=1)


def _products(
    name: str, degree: int, degrees: list[int], of_one: Callable[[jax.Array], jax.Array], again: Any
) -> Basis:
    """The basis of all products whose degrees add up to at most ``degree``.

    ``again`` gives the richer one, of degree 2 degree + 1: one more than twice, so that odd answers gain from it.
    """

    def fit(Z: np.ndarray) -> Features:
        d = Z.shape[1]
        few = [i for i in range(d + 1) if i <= degree]  # at most `degree` coordinates differ from the constant
        which = []
        for active in itertools.chain.from_iterable(itertools.combinations(range(d), i) for i in few):
            for chosen in itertools.product(range(1, len(degrees)), repeat=len(active)):
                if sum(degrees[i] for i in chosen) <= degree:
                    row = np.zeros(d, np.int32)
                    row[list(active)] = chosen
                    which.append(row)
            if len(which) > MOST_FUNCTIONS:
                raise ValueError(
                    f"`degree` of {name} gives more than {MOST_FUNCTIONS} functions of {d} coordinates. Got {degree}; "
                    "take a smaller one, or random_features or splines, which do not grow with products."
                )
        return Products(interval(Z), jnp.asarray(np.array(which)), of_one)

    return Basis(f"{name}({degree})", fit, again)


def chebyshev(degree: int = 3) -> Basis:
    """Products of Chebyshev polynomials on the range of the data, of total degree at most ``degree``."""
    require_integer("degree", "chebyshev", degree, 1)

    def of_one(z: jax.Array) -> jax.Array:
        return jnp.cos(jnp.arange(degree + 1, dtype=z.dtype) * jnp.arccos(jnp.clip(z, -1, 1)))

    return _products("chebyshev", degree, list(range(degree + 1)), of_one, lambda: chebyshev(2 * degree + 1))


def fourier(degree: int = 3) -> Basis:
    """Products of sines and cosines of up to ``degree`` half waves over the range of the data."""
    require_integer("degree", "fourier", degree, 1)

    def of_one(z: jax.Array) -> jax.Array:
        angle = jnp.pi / 2 * jnp.arange(1, degree + 1, dtype=z.dtype) * z
        return jnp.concatenate([jnp.ones(1, angle.dtype), jnp.cos(angle), jnp.sin(angle)])

    waves = [0, *range(1, degree + 1), *range(1, degree + 1)]
    return _products("fourier", degree, waves, of_one, lambda: fourier(2 * degree + 1))


class Splines(eqx.Module):
    """1 and, for each coordinate, bumps at equal distances."""

    inside: Interval
    knots: int = eqx.field(static=True)

    def __call__(self, z: jax.Array) -> jax.Array:
        place = (self.inside(z) + 1) / 2 * (self.knots - 1)
        # the bumps of a coordinate add up to one, which is there already: the first is left out
        bumps = cubic_bump(place[:, None] - jnp.arange(1, self.knots, dtype=place.dtype)[None, :])
        return jnp.concatenate([jnp.ones(1, bumps.dtype), bumps.reshape(-1)])


def cubic_bump(t: jax.Array) -> jax.Array:
    """The cubic B-spline of width 4 around 0."""
    t = jnp.abs(t)
    near, far = (4 - 6 * t**2 + 3 * t**3) / 6, jnp.maximum(2 - t, 0) ** 3 / 6
    return jnp.where(t < 1, near, far)


def splines(knots: int = 8) -> Basis:
    """Cubic splines of each coordinate, added up: no products, so that many coordinates cost little."""
    require_integer("knots", "splines", knots, 3)
    return Basis(f"splines({knots})", lambda Z: Splines(interval(Z), knots), lambda: splines(2 * knots - 1))


class Waves(eqx.Module):
    """1 and cosines in random directions."""

    centre: jax.Array
    directions: jax.Array  # (n, d), scale of the data included
    phases: jax.Array

    def __call__(self, z: jax.Array) -> jax.Array:
        waves = jnp.sqrt(2.0) * jnp.cos(self.directions @ (z - self.centre) + self.phases)
        return jnp.concatenate([jnp.ones(1, waves.dtype), waves])


def random_features(n: int = 100, *, key: Key, bandwidth: float = 1.0) -> Basis:
    """n random Fourier features of a Gaussian kernel (Rahimi and Recht 2007), for contexts of many coordinates.

    Args:
        n: how many.
        key: of their directions and phases.
        bandwidth: of the kernel, in units of the median distance of two contexts of the data, each coordinate
            brought to unit deviation.
    """
    require_integer("n", "random_features", n, 1)
    require_key("random_features", key)
    require_positive("bandwidth", "random_features", bandwidth)

    def fit(Z: np.ndarray) -> Features:
        scale = np.where(Z.std(axis=0) > 0, Z.std(axis=0), 1.0)
        some = (Z / scale)[:: max(1, len(Z) // 500)]
        distances = np.linalg.norm(some[:, None] - some[None], axis=2)
        typical = float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0
        key_w, key_b = random.split(key)
        directions = random.normal(key_w, (n, Z.shape[1]), float) / jnp.asarray(scale * typical * bandwidth)[None, :]
        phases = random.uniform(key_b, (n,), float, maxval=2 * math.pi)
        return Waves(jnp.asarray(Z.mean(axis=0)), directions, phases)

    again = lambda: random_features(2 * n, key=key, bandwidth=bandwidth)
    return Basis(f"random_features({n})", fit, again, redundant=True)


def as_basis(basis: Any) -> Basis:
    """A basis, or any function of a context's coordinates, ``z -> vector``, as one."""
    if isinstance(basis, Basis):
        return basis
    if not callable(basis):
        raise ValueError(
            "`basis` of reduced must be one of chebyshev, fourier, splines, random_features, forest_leaves, or a "
            f"function z -> vector of a context's coordinates. Got {basis!r}."
        )
    if isinstance(basis, eqx.Module):
        module: Any = basis
        return Basis(type(basis).__name__, lambda Z: module)
    return _given(basis)


@functools.lru_cache(maxsize=64)  # one basis for one function, so that its tables share programs
def _given(function: Features) -> Basis:
    return Basis(getattr(function, "__name__", "functions"), lambda Z: Given(function))


class Given(eqx.Module):
    """A user's function of the coordinates."""

    function: Features = eqx.field(static=True)

    def __call__(self, z: jax.Array) -> jax.Array:
        return self.function(z)


class Scaled(eqx.Module):
    """Phi made uncorrelated on the data: E Phi Phi^T is the identity there."""

    features: Features
    mixing: jax.Array  # (N, what of it is kept)
    basis: Basis = eqx.field(static=True)
    least: jax.Array  # eigenvalue of E Phi Phi^T before, at unit mean squares; data, so that tables share programs

    def __call__(self, z: jax.Array) -> jax.Array:
        return self.features(z) @ self.mixing


def scaled(
    basis: Basis, Z: np.ndarray, blocks: Callable[[], Iterable[np.ndarray]] | None = None
) -> tuple[Scaled, np.ndarray | None]:
    """The functions, uncorrelated on contexts Z, and their values (n, N) there; refused where W is not determined.

    Where contexts are too many for memory, Z are some of them, the functions are uncorrelated on all ``blocks()``,
    passed over once, and no values are kept.
    """
    features = basis.fit(Z)
    at = jax.jit(jax.vmap(features))
    many, gram, values = 0, np.zeros(()), None
    for block in blocks() if blocks else [Z]:
        values = np.asarray(at(jnp.asarray(block)), np.float64)
        many, gram = many + len(values), gram + values.T @ values
    sizes = np.sqrt(np.diagonal(gram) / many)
    inverse = 1 / np.where(sizes > 0, sizes, 1.0)
    finite = bool(np.isfinite(gram).all())
    eigenvalues, directions = (
        np.linalg.eigh(gram * np.outer(inverse, inverse) / many) if finite else (np.zeros(1), gram)
    )
    usable = eigenvalues >= LEAST_EIGENVALUE
    if not finite or not (basis.redundant or usable.all()):
        raise ValueError(
            "`basis` of reduced must determine W: the smallest eigenvalue of E Phi Phi^T must be at least "
            f"{LEAST_EIGENVALUE:g} for functions of unit mean square. Got {max(eigenvalues[0], 0):.1e} for "
            f"{len(gram)} functions of {basis.name} on {many} contexts; take fewer functions, or orthogonal "
            "ones such as chebyshev."
        )
    mixing = directions[:, usable] / np.sqrt(eigenvalues[usable]) * inverse[:, None]
    found = Scaled(features, jnp.asarray(mixing), basis, jnp.asarray(eigenvalues[usable][0]))
    return found, None if blocks or values is None else values @ mixing
