"""What a client more costs: time per outer step, reading and memory from 10^2 to 10^7 clients on disk."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import median, publish
from jax import random

import bilevelax as bx
from bilevelax.datasets import ClientStore, ClientWriter
from bilevelax.problems.feed import Source
from bilevelax.run.run import Run

ROWS, D, CONTEXTS, STEPS, BLOCK = 10, 16, 32, 50, 10_000


def write(folder: Path, M: int) -> ClientStore:
    """Ridge regression clients, a block of them at a time."""
    rng = np.random.default_rng(0)
    with ClientWriter(folder) as writer:
        for start in range(0, M, BLOCK):
            n = min(BLOCK, M - start)
            a = rng.standard_normal((n * ROWS, D), np.float32)
            own = 1 + 0.3 * rng.standard_normal((n, D), np.float32)
            writer.add({"a": a, "b": np.einsum("rd,rd->r", a, np.repeat(own, ROWS, 0))}, np.full(n, ROWS))
    return ClientStore(folder)


def loss(y: jax.Array, row: dict[str, jax.Array]) -> jax.Array:
    return (row["a"] @ y - row["b"]) ** 2 / 2


def problem_of(store: ClientStore) -> bx.Problem:
    return bx.from_clients(
        f=lambda x, y, eta, xi: loss(y, eta),
        g=lambda x, y, eta, xi: loss(y, eta) + 4 * jnp.sum((y - x) ** 2),
        store=store,
        init_y=lambda x, xi: x,
        mu_g=8.0,
        L_g1=8.0 + 48.0,
    )


def resident(name: str) -> float:
    """Megabytes of this process: RssAnon is its own, RssFile the mapped pages of the cache."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def reading(store: ClientStore, rounds: int) -> float:
    """Random clients a second, 4096 at a time, the best round: pages in the cache."""
    rng, seconds = np.random.default_rng(1), []
    for _ in range(rounds):
        ids = rng.integers(0, len(store), 4096)
        started = time.perf_counter()
        store.get(ids)
        seconds.append(time.perf_counter() - started)
    return 4096 / min(seconds)


def warm(store: ClientStore) -> None:
    for name in store.files:
        with open(store.folder / name, "rb") as file:
            while file.read(1 << 24):
                pass


def step_milliseconds(runs: dict[int, Run], rounds: int, steps: int = STEPS) -> dict[int, float]:
    """Chunks take turns, so a busy machine slows all of them alike."""
    seconds: dict[int, list[float]] = {M: [] for M in runs}
    for i in range(rounds + 1):
        for M, run in runs.items():
            before = run.seconds
            run.advance(steps)
            if i:
                seconds[M].append(run.seconds - before)
    return {M: 1e3 * median(each) / steps for M, each in seconds.items()}


def begin(problem: bx.Problem, estimator: bx.Estimator) -> Run:
    run = Run(problem, estimator, optax.sgd(0.01), jnp.zeros(D), random.key(0), T=10**6, every=STEPS)
    run.begin({})
    return run


def with_tables(store: ClientStore, rounds: int) -> tuple[float, float]:
    """BSVRB v2, all clients in memory: milliseconds a step, megabytes of state."""
    everyone = store.get(np.arange(len(store)))
    problem = bx.from_arrays(
        lambda x, y, eta, xi: loss(y, eta),
        lambda x, y, eta, xi: loss(y, eta) + 4 * jnp.sum((y - x) ** 2),
        jnp.zeros(len(store)),
        everyone.rows,
        init_y=lambda x, xi: jnp.zeros(D),
        mu_g=8.0,
        L_g1=56.0,
    )
    run = begin(problem, bx.bsvrb(version=2, blocks=CONTEXTS))
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(run.carry.est_state)) / 1e6
    return step_milliseconds({0: run}, rounds, 5)[0], state


def run(quick: bool = False) -> None:
    sizes = [10**k for k in range(2, 6 if quick else 8)]
    rounds = 3 if quick else 15
    folder = Path(tempfile.mkdtemp(prefix="clients-", dir=os.environ.get("BILEVELAX_SCRATCH")))
    try:
        stores = {M: write(folder / str(M), M) for M in sizes}
        base = problem_of(stores[sizes[0]])
        problems = {
            M: dataclasses.replace(base, source=Source(lambda numbers, s=store: s.get(s.draw(numbers)), store.digest))
            for M, store in stores.items()
        }
        estimators = {
            "rt_mlmc": bx.minibatch(bx.rt_mlmc(6, inverse=bx.neumann(20)), CONTEXTS),
            "antithetic_mlmc": bx.minibatch(bx.antithetic_mlmc(8, levels=4, factor=2), CONTEXTS),
        }
        for store in stores.values():
            warm(store)
        rows = {M: {"clients": M, "read /s": round(reading(store, 100))} for M, store in stores.items()}
        for name, estimator in estimators.items():
            found = step_milliseconds({M: begin(p, estimator) for M, p in problems.items()}, rounds)
            for M, each in found.items():
                rows[M] |= {f"{name} ms": each}
        anonymous, mapped = resident("RssAnon"), resident("RssFile")
        for M in [M for M in sizes if M <= 10**5]:
            rows[M] |= dict(zip(("bsvrb v2 ms", "its state MB"), with_tables(stores[M], 3), strict=True))
        flat = {name: max(r[f"{name} ms"] for r in rows.values()) / rows[sizes[0]][f"{name} ms"] for name in estimators}
        publish(
            "clients",
            f"An outer step of {CONTEXTS} clients ({ROWS} rows, {D} features each), clients on disk, cache warm",
            list(rows.values()),
            [
                f"Slowest over 10^2 clients: {', '.join(f'{name} {value:.2f}' for name, value in flat.items())}.",
                f"Anonymous memory with all these stores open: {anonymous:.0f} MB; mapped pages {mapped:.0f} MB.",
                f"BSVRB keeps 6 numbers of {D} for each client: {6 * D * 4} bytes, {6 * D * 4 / 100:.1f} GB at 10^7 "
                "clients, and moves all of them every step.",
            ],
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    run()
