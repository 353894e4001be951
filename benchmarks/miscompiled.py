"""``python benchmarks/miscompiled.py [WORD ...]``: what does XLA's fusion get wrong, from how many rows on?

Every kind of computation is compiled with the fusion on and compared with the same operations one at a time, in
double precision; what differs is compiled again with the fusion off. Words select the kinds that have one of them in
their name. ``--all`` tries every d and k up to 8 and more rows, which takes hours.
"""

from __future__ import annotations

import os

os.environ["BILEVELAX_XLA_FLAGS"] = "0"  # before JAX starts: the fusion is on unless a program says otherwise

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bilevelax as bx
from bilevelax._xla import FUSION

jax.config.update("jax_enable_x64", True)
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-9}
SIZES = ((1, 1), (2, 3), (3, 1), (3, 2), (3, 3), (3, 64), (8, 3))  # (d, k)
ROWS = (64, 1_000, 4_097, 16_385, 33_000, 65_537, 160_000)
ALL_SIZES = tuple(itertools.product(range(1, 9), range(1, 9)))
ALL_ROWS = tuple(sorted({*ROWS, *(2**p + e for p in range(10, 18) for e in (-1, 0, 1)), 20_000, 50_000, 100_000}))
FEWEST = (64, 512, 1_365, 1_366, 2_000, 2_049, 4_096, 8_192, 16_384, 16_385, 24_000, 32_768, 32_769)


def products(W: Any, y: Any, rows: Any) -> Any:
    return jnp.mean(jax.vmap(lambda e: jnp.sum(W @ (e - y)) ** 2)(rows))


def squares(W: Any, y: Any, rows: Any) -> Any:
    return jnp.mean(jax.vmap(lambda e: jnp.sum((W @ (e - y)) ** 2))(rows))


def softmax(W: Any, y: Any, rows: Any) -> Any:
    return jnp.mean(jax.vmap(lambda e: jax.nn.logsumexp(W @ (e * y)))(rows))


def newsvendor(W: Any, y: Any, rows: Any) -> Any:
    cost = lambda w, eta: (jax.nn.softplus(5 * (w - eta)) + 3 * jax.nn.softplus(5 * (eta - w))) / 5
    return jnp.mean(jax.vmap(lambda e: cost(W[0] @ y, e[0]) + jnp.sum((y - e) ** 2))(rows))


def stored(W: Any, y: Any, rows: Any) -> Any:
    """The batch loss of a problem from arrays, as `saa("all")` sees it."""
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: jnp.sum(W @ (eta - y)) ** 2,
        g=lambda x, y, eta, xi: jnp.sum((W @ (eta - y)) ** 2) + jnp.sum((y - x) ** 2),
        contexts=jnp.zeros((1, 1), rows.dtype),
        outcomes=rows[None],
        init_y=lambda x, xi: x,
    )
    xi = problem.nth_context(0)
    return problem.weighted().g(y, y, problem.outcomes(xi), xi)


def in_direction(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Of the Hessian in y."""
    return lambda W, y, rows: jax.jvp(lambda y: jax.grad(loss, 1)(W, y, rows), (y,), (jnp.ones_like(y),))[1]


LOSSES = {
    "sum(W(e - y))^2": products,
    "|W(e - y)|^2": squares,
    "logsumexp W(e y)": softmax,
    "newsvendor": newsvendor,
    "stored outcomes": stored,
}
KINDS: dict[str, Callable[..., Any]] = {
    **{f"mean of {name}": loss for name, loss in LOSSES.items()},
    **{f"gradient of the mean of {name}": jax.grad(loss, 1) for name, loss in LOSSES.items()},
    **{
        f"gradient in W of the mean of {name}": jax.grad(loss, 0) for name, loss in LOSSES.items() if loss != newsvendor
    },
    **{f"Hessian product of the mean of {name}": in_direction(loss) for name, loss in LOSSES.items()},
    "values sum (W e)^2": lambda W, y, rows: jax.vmap(lambda e: jnp.sum((W @ e) ** 2))(rows),
    "values sum(W e)": lambda W, y, rows: jax.vmap(lambda e: jnp.sum(W @ e))(rows),
    "values logsumexp(W e)": lambda W, y, rows: jax.vmap(lambda e: jax.nn.logsumexp(W @ e))(rows),
    "products W e": lambda W, y, rows: jax.vmap(lambda e: W @ e)(rows),
    "sum over rows": lambda W, y, rows: jnp.sum(rows, axis=0),
    "sum of squares": lambda W, y, rows: jnp.sum(rows**2),
}


class Case(NamedTuple):
    """One computation at one size."""

    kind: str
    dtype: Any
    d: int
    k: int
    rows: int

    def arguments(self, dtype: Any) -> tuple[Any, ...]:
        """W, y and rows that grow with their number, so that none can be left out unnoticed."""
        number = np.arange(self.rows)[:, None]
        rows = np.sin(number * np.arange(1.0, self.d + 1)) + 10.0 * number / self.rows
        W = np.cos(1.0 + np.arange(1.0 * self.d * self.k)).reshape(self.k, self.d) + 0.5
        return tuple(np.asarray(a, self.dtype).astype(dtype) for a in (W / self.d, np.ones(self.d), rows))

    def error(self, fusion: bool) -> float:
        """Largest difference to the same operations one at a time, relative to the largest number."""
        options = None if fusion else {FUSION: ""}
        found = jax.jit(KINDS[self.kind], compiler_options=options)(*self.arguments(self.dtype))
        with jax.disable_jit():
            right = np.asarray(KINDS[self.kind](*self.arguments(np.float64)))
        return float(np.max(np.abs(np.asarray(found, float) - right)) / (np.max(np.abs(right)) or 1.0))

    def is_wrong(self, fusion: bool = True) -> bool:
        return not self.error(fusion) <= TOLERANCE[np.dtype(self.dtype)]


def cases(words: list[str], sizes: Any, rows: Any) -> Iterator[Case]:
    kinds = [kind for kind in KINDS if not words or any(word in kind for word in words)]
    for kind, dtype, (d, k), n in itertools.product(kinds, (np.float32, np.float64), sizes, rows):
        yield Case(kind, dtype, d, k, n)


def main() -> None:
    everything, words = "--all" in sys.argv, [word for word in sys.argv[1:] if not word.startswith("--")]
    sizes, rows = (ALL_SIZES, ALL_ROWS) if everything else (SIZES, ROWS)
    tried = list(cases(words, sizes, rows))
    found: dict[tuple[str, Any], list[Case]] = {}
    for case in tried:
        if case.is_wrong():
            found.setdefault((case.kind, case.dtype), []).append(case)
            off = "right" if not case.is_wrong(fusion=False) else "WRONG AS WELL"
            what = f"d = {case.d}, k = {case.k}, {case.rows:,} rows"
            print(
                f"{case.kind}, {np.dtype(case.dtype)}, {what}: {case.error(True):.1%} off; fusion off: {off}",
                flush=True,
            )
    print(f"{sum(map(len, found.values()))} of {len(tried)} are wrong; the fewest rows of each kind:")
    for (kind, dtype), wrong in found.items():
        shapes = {(case.d, case.k) for case in wrong}
        numbers = sorted({*FEWEST, *(case.rows for case in wrong)})
        least = next((n, d, k) for n in numbers for d, k in shapes if Case(kind, dtype, d, k, n).is_wrong())
        print(f"{kind}, {np.dtype(dtype)}: {least[0]:,} rows (d = {least[1]}, k = {least[2]})", flush=True)


if __name__ == "__main__":
    main()
