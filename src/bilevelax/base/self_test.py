"""A test of the compiler itself: gradients, values and Hessian products of batches, which some versions get wrong.

Sizes by measurement, `benchmarks/miscompiled.py`: values from 32,769 rows on in single and 16,385 in double precision;
products of a fixed direction with the Hessian of a mean over n rows of k products from n k = 4,096 on in both.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevelax._xla import FLAG, jaxlib_version
from bilevelax.base.compiling import AT_ONCE, fusion_off

LENGTHS = (2_100, 16_385, 32_768, 33_000, 40_000, 43_000, 65_000)  # numbers of rows
SIZES = (2, 3)  # of the products W e that are squared and added
TOLERANCE = 1e-3  # single precision sums 65,000 numbers to about 1e-5
FAST = AT_ONCE  # the faults are in what XLA hands on to LLVM: without LLVM's optimisations all of them show


class Wrong(NamedTuple):
    """One computation that the compiler got wrong, by how much relative to its size."""

    what: str
    error: float


def _losses(W: Any, y: Any, rows: Any) -> Any:
    return jnp.mean(jax.vmap(lambda e: jnp.sum(W @ (e - y)) ** 2)(rows))


def _names(n: int, k: int) -> tuple[str, str, str]:
    where = f"a mean over {n:,} rows of {k} products"
    return f"the gradient of {where}", f"a product with the Hessian of {where}", f"one of {n:,} values of {k} products"


def _cases(W: Any, y: Any, batches: list[Any]) -> dict[str, Any]:
    """Gradients and products with a direction that is known when compiling (with another one they are right), values.

    The numbers are arguments: what follows from constants alone is computed by other means. One W in a program: where
    two share the rows, the products are right.
    """
    found: dict[str, Any] = {}
    for rows in batches:
        slope = lambda y, rows=rows: jax.grad(_losses, argnums=1)(W, y, rows)
        values = jax.vmap(lambda e: jnp.sum((W @ e) ** 2))(rows)
        found |= zip(_names(len(rows), len(W)), (*jax.jvp(slope, (y,), (jnp.ones_like(y),)), values), strict=True)
    return found


def _rows(n: int) -> np.ndarray:
    """n rows in R^3, the last of them large: none can be left out, or replaced by another, unnoticed."""
    number = np.arange(n)[:, None]
    return np.sin(number * np.array([1.0, 2.0, 3.0])) + 50.0 * ((number + 1) / n) ** 100


def _matrix(k: int) -> np.ndarray:
    return np.cos(1.0 + np.arange(3.0 * k)).reshape(k, 3) + 0.5


def _right(W: np.ndarray, batches: list[np.ndarray]) -> dict[str, Any]:
    """The same by NumPy, in double precision, with y = (1, 1, 1)."""
    found: dict[str, Any] = {}
    total = W.sum(0)
    for rows in batches:
        slope, product = -2 * np.mean((rows - 1.0) @ total) * total, 2 * total.sum() * total
        found |= zip(_names(len(rows), len(W)), (slope, product, np.sum((rows @ W.T) ** 2, axis=1)), strict=True)
    return found


@functools.cache
def compiler_errors(
    sizes: tuple[int, ...] = LENGTHS, products: tuple[int, ...] = SIZES, dtype: Any = np.float32, ours: bool = True
) -> list[Wrong]:
    """What the compiler of this process computes wrongly, among gradients, Hessian products and values of batches.

    ``ours``: as programs of this library are compiled; otherwise as a plain `jax.jit` is. Asked once in a process.
    """
    compiled = jax.jit(_cases, compiler_options=FAST | fusion_off() if ours else FAST)
    batches, wrong = [_rows(n) for n in sizes], []
    for W in map(_matrix, products):
        with jax.enable_x64(True) if dtype == np.float64 else contextlib.nullcontext():
            given = jax.tree.map(lambda a: a.astype(dtype), (W, np.ones(3), batches))
            found = {name: np.asarray(value, float) for name, value in compiled(*given).items()}
        for name, right in _right(W, batches).items():
            error = float(np.max(np.abs(found[name] - right)) / np.max(np.abs(right)))
            wrong += [] if error <= TOLERANCE else [Wrong(f"{name}, {np.dtype(dtype)}", error)]
    return wrong


@functools.lru_cache(maxsize=1)
def warn_of_wrong_numbers() -> None:
    """Once per process, before the first run on CPU: a warning where the compiler fails a short test of it."""
    wrong = compiler_errors(sizes=(40_000,), products=(2,))
    if wrong:
        warnings.warn(f"{sentence(wrong)} {remedy()}", RuntimeWarning, stacklevel=3)


def sentence(wrong: list[Wrong]) -> str:
    worst = max(wrong, key=lambda each: each.error)
    return f"jaxlib {jaxlib_version()} computes wrongly on this CPU: {worst.what} is {worst.error:.0%} off."


def remedy() -> str:
    return f"Set XLA_FLAGS={FLAG} before JAX starts, or install the jaxlib of constraints.txt."
