"""Ridge penalties of 30 groups, 300 steps of Adam: whole scripts from start to end, in CPU seconds.

A leader chooses the logarithms of ten penalties, one a feature, by the validation error of 30 ridge regressions, one a
group. Every way takes the same 300 full-batch steps from the same start; ``python benchmarks/ridge.py WAY`` is one
script, which imports only what it uses and prints the penalties' mean and the last validation error.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GROUPS, ROWS, FEATURES, STEPS, RATE = 30, 40, 10, 300, 0.03


def data() -> tuple[np.ndarray, ...]:
    """Training features and targets, and those of validation, of all groups; half of the features say nothing."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(GROUPS, FEATURES)) * (np.arange(FEATURES) < FEATURES // 2)
    parts = []
    for _ in range(2):
        A = rng.normal(size=(GROUPS, ROWS, FEATURES)).astype(np.float32)
        b = np.einsum("gij,gj->gi", A, truth) + rng.normal(size=(GROUPS, ROWS))
        parts += [A, b.astype(np.float32)]
    return tuple(parts)


def adam(gradient: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """The same steps for whoever differentiates by hand; one compiled program."""
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adam(RATE)

    @jax.jit
    def descend(x: Any, *arrays: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, state = carry
            updates, state = optimizer.update(gradient(x, *arrays), state)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(step, (x, optimizer.init(x)), None, STEPS)[0][0]

    return jax.block_until_ready(descend(jnp.zeros(FEATURES), *arrays))


def lower(y: Any, x: Any, A: Any, b: Any) -> Any:
    import jax.numpy as jnp

    return jnp.mean((A @ y - b) ** 2) / 2 + jnp.sum(jnp.exp(x) * y**2) / 2


def by_solver(solve: Callable[..., Any]) -> Any:
    """``solve(x, A, b) -> y``, differentiable, vectorised over the groups."""
    import jax
    import jax.numpy as jnp

    def loss(x: Any, A: Any, b: Any, C: Any, d: Any) -> Any:
        y = jax.vmap(solve, in_axes=(None, 0, 0))(x, A, b)
        return jnp.mean((jnp.einsum("gij,gj->gi", C, y) - d) ** 2) / 2

    return adam(jax.grad(loss), *data())


def linalg() -> Any:
    import jax.numpy as jnp

    return by_solver(lambda x, A, b: jnp.linalg.solve(A.T @ A / len(b) + jnp.diag(jnp.exp(x)), A.T @ b / len(b)))


def jaxopt() -> Any:
    import jax.numpy as jnp
    import jaxopt

    solver = jaxopt.LBFGS(lower, maxiter=50, tol=1e-4, implicit_diff=True)
    return by_solver(lambda x, A, b: solver.run(jnp.zeros(FEATURES), x, A, b).params)


def optimistix() -> Any:
    import jax.numpy as jnp
    import optimistix

    solver = optimistix.BFGS(rtol=1e-4, atol=1e-4)
    loss = lambda y, args: lower(y, *args)
    return by_solver(
        lambda x, A, b: optimistix.minimise(loss, solver, jnp.zeros(FEATURES), (x, A, b), max_steps=256).value
    )


def ours(auto: bool = False) -> Any:
    import jax
    import jax.numpy as jnp
    import optax

    import bilevelax as bx

    A, b, C, d = data()
    square = lambda y, row: (row[0] @ y - row[1]) ** 2 / 2
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: square(y, eta[1]),
        g=lambda x, y, eta, xi: square(y, eta[0]) + jnp.sum(jnp.exp(x) * y**2) / 2,
        contexts=np.arange(GROUPS),
        outcomes=((A, b), (C, d)),
        init_y=lambda x, xi: jnp.zeros(FEATURES),
    )
    estimator = "auto" if auto else bx.minibatch(bx.saa("all"), GROUPS, contexts="spread")
    settings = {"key": jax.random.key(0), "T": STEPS, "every": STEPS, "progress": False}
    return bx.minimize(problem, estimator, optax.adam(RATE), jnp.zeros(FEATURES), **settings).x


WAYS = {"saa": ours, "auto": lambda: ours(True), "linalg.solve": linalg, "jaxopt": jaxopt, "optimistix": optimistix}
NAMES = {"saa": 'ours, saa("all")', "auto": 'ours, "auto"'}


def validation_error(x: Any) -> float:
    A, b, C, d = data()
    y = [np.linalg.solve(A[g].T @ A[g] / ROWS + np.diag(np.exp(x)), A[g].T @ b[g] / ROWS) for g in range(GROUPS)]
    return float(np.mean((np.einsum("gij,gj->gi", C, np.stack(y)) - d) ** 2) / 2)


def child(way: str) -> dict[str, Any]:
    """One script, whose CPU seconds are the operating system's."""
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before, started = used(), time.perf_counter()
    ran = subprocess.run([sys.executable, str(Path(__file__)), way], capture_output=True, text=True, check=True)
    spent, wall = used() - before, time.perf_counter() - started
    mean, error = map(float, ran.stdout.split()[-2:])
    return {"CPU s": spent, "seconds": wall, "mean log penalty": mean, "validation error": error}


def run(quick: bool = False) -> None:
    from common import installed, median, publish

    ways = [way for way in WAYS if way not in ("jaxopt", "optimistix") or installed(way)]
    rounds = 1 if quick else 3
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(child(way))
    rows = [
        {"way": NAMES.get(way, f"vmap of {way}"), **{name: median([row[name] for row in rows]) for name in rows[0]}}
        for way, rows in found.items()
    ]
    note = f"{STEPS} full-batch steps of Adam, rate {RATE}; no cache. What is not installed is left out."
    publish("ridge", f"Ridge penalties of {GROUPS} groups: a whole script", rows, [note])


if __name__ == "__main__":
    found = np.asarray(WAYS[sys.argv[1]]())
    print(float(found.mean()), validation_error(found))
